"""Freed memory of responses stays for later ones, and that of large messages does not, where the C library is glibc."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the rule is that of glibc")

SCRIPT = """
import resource, sys
import psutil
from consumerd.daemon.memory import fix_malloc_thresholds

changed = fix_malloc_thresholds() if sys.argv[1] == "fixed" else False

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
print(changed, repeated, psutil.Process().memory_info().rss - at_rest)
"""


def measured(how: str, **environ: str) -> tuple[str, int, int]:
    """Whether something was changed, page faults of later responses, and bytes that stay after large messages."""
    names = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env=names | environ, check=True, capture_output=True, text=True, timeout=60
    )
    changed, faults, kept = done.stdout.split()
    return changed, int(faults), int(kept)


def test_memory_of_responses_is_used_again_and_that_of_large_messages_is_returned() -> None:
    changed, faults, kept = measured("fixed")
    assert changed == "True"
    assert faults < 1_000
    assert kept < 30 << 20


def test_without_fixed_thresholds_each_response_costs_page_faults() -> None:
    """If this fails, the C library has learned it, and `consumerd.daemon.memory` is not needed any more."""
    changed, faults, _ = measured("as it is")
    assert changed == "False"
    assert faults > 10_000


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_operator_count(name: str) -> None:
    value = "1000000" if name.startswith("MALLOC") else "glibc.malloc.mmap_threshold=2000000"
    changed, _, _ = measured("fixed", **{name: value})
    assert changed == "False"
