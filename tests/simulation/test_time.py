"""Virtual time: all clocks of a process agree, no real time passes, and a simulation that cannot continue fails."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator

import pytest

from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import Kernel, SimulationError
from tests.simulation.network import Network
from tests.simulation.process import ProcessLoop


class Processes:
    """A kernel and the processes that a test asks for."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(0))

    def process(self, name: str) -> ProcessLoop:
        return ProcessLoop(self.kernel, self.network, name)


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for loop in made.kernel.loops:
        loop.unwind()


def test_sleep_of_an_hour_passes_on_all_clocks_in_no_real_time(processes: Processes) -> None:
    loop = processes.process("one")
    clock = ProcessClock(loop)

    async def sleep() -> tuple[float, float, float, float]:
        begun, wall = clock.monotonic(), clock.wall()
        await asyncio.sleep(1800.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1800.0):
                await asyncio.Event().wait()
        return clock.monotonic() - begun, clock.wall() - wall, loop.time() - begun, processes.kernel.now - begun

    before = time.monotonic()
    assert loop.play(sleep(), 7200.0) == pytest.approx((3600.0, 3600.0, 3600.0, 3600.0))
    assert time.monotonic() - before < 600.0


def test_processes_wake_in_the_order_of_time(processes: Processes) -> None:
    seen: list[tuple[str, float]] = []

    async def tick(name: str, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            seen.append((name, processes.kernel.now))

    for name, every in (("slow", 0.5), ("fast", 0.2)):
        loop = processes.process(name)
        loop.submit(lambda loop=loop, name=name, every=every: loop.create_task(tick(name, every)))
    processes.kernel.run(1.05)
    expected = [("fast", 0.2), ("fast", 0.4), ("slow", 0.5), ("fast", 0.6), ("fast", 0.8), ("slow", 1.0), ("fast", 1.0)]
    assert [name for name, _ in seen] == [name for name, _ in expected]
    assert [when for _, when in seen] == pytest.approx([when for _, when in expected])


def test_suspended_process_does_not_run_while_its_clock_advances(processes: Processes) -> None:
    frozen, other = processes.process("frozen"), processes.process("other")
    turns: dict[str, list[float]] = {"frozen": [], "other": []}

    async def tick(name: str) -> None:
        while True:
            turns[name].append(processes.kernel.now)
            await asyncio.sleep(1.0)

    for loop in (frozen, other):
        loop.submit(lambda loop=loop: loop.create_task(tick(loop.name)))
    processes.kernel.run(2.5)
    frozen.stop_process()
    processes.kernel.run(10.0)
    assert len(turns["frozen"]) == 3
    assert len(turns["other"]) == 13
    assert ProcessClock(frozen).monotonic() == processes.kernel.now
    frozen.continue_process()
    processes.kernel.run(0.1)
    assert turns["frozen"][3:] == pytest.approx([12.5])


def test_deadlock_raises_an_error_that_names_the_waiting_tasks(processes: Processes) -> None:
    loop = processes.process("stuck")

    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    loop.submit(lambda: loop.create_task(wait_for_nothing(), name="the hopeless one"))
    with pytest.raises(SimulationError, match=r"stuck: the hopeless one waits in .*wait_for_nothing"):
        processes.kernel.run_dry()


def test_loop_that_never_sleeps_raises_an_error(processes: Processes) -> None:
    loop = processes.process("busy")

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    loop.submit(lambda: loop.create_task(spin()))
    with pytest.raises(SimulationError, match="without time passing"):
        processes.kernel.run(1.0)


def test_thread_runs_in_the_time_of_the_loop(processes: Processes) -> None:
    loop = processes.process("one")

    async def work() -> tuple[int, float]:
        begun = loop.time()
        result = await asyncio.to_thread(sum, [1, 2, 3])
        return result, loop.time() - begun

    result, took = loop.play(work())
    assert result == 6
    assert 0.0 < took < 0.1


def test_signal_ends_a_process_without_a_handler_only(processes: Processes) -> None:
    bare, careful = processes.process("bare"), processes.process("careful")
    told: list[int] = []
    careful.add_signal_handler(signal.SIGTERM, told.append, 1)
    for loop in (bare, careful):
        loop.signal(signal.SIGTERM)
    processes.kernel.run(0.1)
    assert (bare.dead, careful.dead, told) == (True, False, [1])


def test_keeps_unretrieved_exceptions(processes: Processes) -> None:
    loop = processes.process("one")

    def fail() -> None:
        raise ValueError("nobody takes this")

    loop.submit(fail)
    processes.kernel.run(0.1)
    assert len(processes.kernel.failures) == 1
    assert "nobody takes this" in processes.kernel.failures[0]
