"""Freed memory of responses: kept by the C library for later ones, where it is glibc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from consumerd.fetch.pool import keep_freed_memory

if {keep}:
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def responses():
    held = [b"x" * (1 << 20) for _ in range(6)]
    held.clear()

responses()
before = faults()
for _ in range(20):
    responses()
print(faults() - before)
"""


def faults(*, keep: bool) -> int:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS.format(keep=keep)], check=True, capture_output=True, text=True, timeout=60
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the rule is that of glibc")
def test_memory_of_responses_is_reused() -> None:
    assert faults(keep=False) > 10_000
    assert faults(keep=True) < 1_000
