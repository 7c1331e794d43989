"""What figures depend on: the machine, its load, the versions of all that takes part, and the codec.

Strategy: everything is asked of the running interpreter and of `/proc`; what cannot be found out is left out. No host
name, and no path: records are kept beside the code.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from consumerd.base import native
from consumerd.base.errors import ConsumerdError
from consumerd.base.java import find_java

#: Distributions that take part, ours first.
DISTRIBUTIONS = (
    "consumerd", "consumerd-native", "aiokafka", "kafka-python", "confluent-kafka", "aiozk", "kazoo", "pyspark",
    "uvloop", "cramjam", "pyarrow",
)  # fmt: skip
#: What names our codec in cases.
PURE, NATIVE = "pure codec", "native codec"


def codec() -> str:
    """The codec that consumerd uses in this process, and in its children."""
    return PURE if native.codec() is None else NATIVE


def load() -> float:
    """Processes that wanted a core, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def versions() -> dict[str, str]:
    """The version of Python, of each distribution that is installed, and of Java."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        java = find_java()
    except ConsumerdError:
        return found
    said = subprocess.run([java.executable, "-version"], capture_output=True, text=True, check=False).stderr
    if said:
        found["java"] = said.splitlines()[0]
    return found


def machine() -> dict[str, Any]:
    """Processor, number of cores that this process may use, memory in GiB, operating system."""
    found: dict[str, Any] = {"architecture": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            found["processor"] = line.partition(":")[2].strip()
            break
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found["memory_gib"] = round(pages * size / 2**30, 1)
    found["system"] = f"{platform.system()} {platform.release()}"
    return found
