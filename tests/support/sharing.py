"""Distributes tests over the processes of pytest-xdist: by module, all of Spark together, the longest first.

Strategy: a module is what one process runs, because its servers and sessions serve all its tests. All of Spark is one
share: a session takes half a minute of processor time until its classes are loaded and its code is compiled, and two at
a time need more than the cores of a small machine. Shares begin with those that take longest and end with unit tests,
whose modules take seconds, so that no process has minutes of work left when the others have none. By itself xdist
begins with the modules of many tests and ends with those of one test, which are the slowest.

Without xdist, tests run in pytest's order.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

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
