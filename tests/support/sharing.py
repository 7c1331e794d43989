"""Distributes tests over the processes of pytest-xdist: by module, all of Spark together, the longest first; and ports.

Strategy: a module is what one process runs, because its servers and sessions serve all its tests. All of Spark is one
share: a session takes half a minute of processor time until its classes are loaded and its code is compiled, and two at
a time need more than the cores of a small machine. Shares begin with those that take longest and end with unit tests,
whose modules take seconds, so that no process has minutes of work left when the others have none. By itself xdist
begins with the modules of many tests and ends with those of one test, which are the slowest.

A server that is killed and started again must find its port free: each process has ports of its own, and others for the
processes that it starts.

Without xdist, tests run in pytest's order.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from consumerd.demo.ports import RANGE_VARIABLE, keep_to, usable_ports

#: The folder whose modules all run in one process.
_SPARK: Final = "tests/spark/"
#: The other folders in their order: those that mostly wait come first, beside Spark, which computes.
_FOLDERS: Final = (
    "tests/interop/", "tests/kill/", "tests/deploy/", "tests/faults/", "tests/integration/", "tests/golden/",
    "tests/simulation/", "tests/property/", "tests/fuzz/", "tests/mutants/",
)  # fmt: skip


def share_of(nodeid: str) -> str:
    """The name of the share to which a test belongs."""
    return "spark" if nodeid.startswith(_SPARK) else nodeid.partition("::")[0]


def turn_of(nodeid: str) -> int:
    """A number that is smaller for what runs earlier."""
    if nodeid.startswith(_SPARK):
        return 0
    return next((turn for turn, folder in enumerate(_FOLDERS, 1) if nodeid.startswith(folder)), len(_FOLDERS) + 1)


def ports_of(worker: int, workers: int, usable: range) -> tuple[range, range]:
    """The ports of one of so many processes, and those of its children."""
    size = len(usable) // (2 * workers)
    own, childrens = (usable[size * part : size * (part + 1)] for part in (2 * worker, 2 * worker + 1))
    return own, childrens


def share_ports(config: pytest.Config) -> None:
    """Keep this process, and what it starts from now on, to its ports. The one that starts the others picks none."""
    if hasattr(config, "workerinput"):
        worker, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    elif config.getoption("dist", "no") == "no":
        worker, workers = 0, 1
    else:
        return
    own, childrens = ports_of(worker, workers, usable_ports())
    keep_to(own)
    os.environ[RANGE_VARIABLE] = f"{childrens[0]}-{childrens[-1]}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in a process of xdist; those of one turn stay in pytest's order
        items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # by the number of tests
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = share_of
    return scheduling
