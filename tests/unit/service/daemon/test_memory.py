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
from consumerd.service.daemon.memory import tune_malloc

changed = tune_malloc(int(sys.argv[1])) if sys.argv[1] else False
count = int(sys.argv[2])

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def responses(size, count):
    held = [b"x" * size for _ in range(count)]
    held.clear()

responses(1 << 20, count)
before = faults()
for _ in range(20):
    responses(1 << 20, count)
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


def measured(budget: int | None = None, count: int = 6, **environ: str) -> tuple[str, int, int, int]:
    """Whether something was changed, page faults of later responses, `count` at once, and bytes that stay after large
    messages and after work of several threads. Without a budget nothing is changed.
    """
    names = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", SCRIPT, "" if budget is None else str(budget), str(count)]
    done = subprocess.run(command, env=names | environ, check=True, capture_output=True, text=True, timeout=60)
    changed, faults, *kept = done.stdout.split()
    after_large, after_threads = map(int, kept)
    return changed, int(faults), after_large, after_threads


@pytest.mark.parametrize(("budget", "count"), [(0, 6), (64 << 20, 14), (128 << 20, 28), (1 << 40, 28)])
def test_memory_of_responses_is_used_again_and_that_of_large_messages_is_returned(budget: int, count: int) -> None:
    changed, faults, after_large, _ = measured(budget, count)
    assert changed == "True"
    assert faults < 1_000
    assert after_large < 30 << 20


def test_small_budget_keeps_little_freed_memory() -> None:
    _, faults, *_ = measured(32 << 20, 14)
    assert faults > 10_000


def test_threads_share_one_heap() -> None:
    """Otherwise each of six threads keeps as much of its freed memory as one heap does, 8 MiB."""
    *_, after_threads = measured(0)
    assert after_threads < 30 << 20


def test_without_fixed_thresholds_each_response_costs_page_faults() -> None:
    """If this fails, the C library has learned it, and `consumerd.service.daemon.memory` is not needed any more."""
    changed, faults, *_ = measured()
    assert changed == "False"
    assert faults > 10_000


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_operator_count(name: str) -> None:
    value = "1000000" if name.startswith("MALLOC") else "glibc.malloc.mmap_threshold=2000000"
    changed, *_ = measured(0, 6, **{name: value})
    assert changed == "False"
