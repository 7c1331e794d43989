"""With glibc, freed memory of responses stays for later ones; that of large messages and of many threads does not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the rule is that of glibc")

SCRIPT = """
import resource, sys, threading
import psutil
from consumerd.daemon.memory import tune_malloc

changed = tune_malloc() if sys.argv[1] == "fixed" else False

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def responses(size, count):
    held = [b"x" * size for _ in range(count)]
    held.clear()

responses(1 << 20, 6)
before = faults()
for _ in range(20):
    responses(1 << 20, 6)
repeated = faults() - before
at_rest = psutil.Process().memory_info().rss
for _ in range(3):
    responses(16 << 20, 4)
after_large = psutil.Process().memory_info().rss - at_rest
together = threading.Barrier(6)

def handler():
    together.wait()
    for _ in range(20):
        responses(70 << 10, 100)
    together.wait()

threads = [threading.Thread(target=handler) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(changed, repeated, after_large, psutil.Process().memory_info().rss - at_rest)
"""


def measured(how: str, **environ: str) -> tuple[str, int, int, int]:
    """Whether something was changed, page faults of later responses, and bytes that stay after large messages and
    after work of several threads.
    """
    names = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env=names | environ, check=True, capture_output=True, text=True, timeout=60
    )
    changed, faults, *kept = done.stdout.split()
    after_large, after_threads = map(int, kept)
    return changed, int(faults), after_large, after_threads


def test_memory_of_responses_is_used_again_and_that_of_large_messages_is_returned() -> None:
    changed, faults, after_large, _ = measured("fixed")
    assert changed == "True"
    assert faults < 1_000
    assert after_large < 30 << 20


def test_threads_share_one_heap() -> None:
    """Otherwise each of six threads keeps as much of its freed memory as one heap does, 8 MiB."""
    *_, after_threads = measured("fixed")
    assert after_threads < 30 << 20


def test_without_fixed_thresholds_each_response_costs_page_faults() -> None:
    """If this fails, the C library has learned it, and `consumerd.daemon.memory` is not needed any more."""
    changed, faults, *_ = measured("as it is")
    assert changed == "False"
    assert faults > 10_000


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_operator_count(name: str) -> None:
    value = "1000000" if name.startswith("MALLOC") else "glibc.malloc.mmap_threshold=2000000"
    changed, *_ = measured("fixed", **{name: value})
    assert changed == "False"
