"""Commands against a ZooKeeper in memory: each runs in a thread, on a loop of its own, as it does in a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest
import structlog

from consumerd.base.ports import ZooKeeper
from consumerd.cli import clusters
from consumerd.cli import session as session_module
from consumerd.cli.main import run
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.commands import Done


class Command(Protocol):
    """Runs a command line; `--zookeeper` goes without saying."""

    async def __call__(self, *arguments: str) -> Done: ...


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log among what commands print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@pytest.fixture
def memory(quiet: None, monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    """The ZooKeeper that commands find, whatever address they are given."""
    memory = MemoryZooKeeper()

    def open_session(zookeeper: str, timeout: float, section: object) -> AbstractAsyncContextManager[ZooKeeper]:
        return memory.session()

    for module in (session_module, clusters):
        monkeypatch.setattr(module, "open_session", open_session)
    return memory


@pytest.fixture
def consumerd(memory: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]) -> Command:
    async def invoke(*arguments: str) -> Done:
        capsys.readouterr()
        code = await asyncio.to_thread(run, [*arguments[:2], "--zookeeper", "memory", *arguments[2:]])
        return Done(code, *capsys.readouterr())

    return invoke


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """A command sends the log to the standard error of its time, which here ends with the test."""
    yield
    structlog.reset_defaults()
