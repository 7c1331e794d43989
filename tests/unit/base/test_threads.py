import asyncio
import threading

import pytest

from consumerd.base.threads import in_thread


async def test_returns_results_and_raises_errors() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_waits_for_the_thread_however_often_it_is_cancelled(
    fails: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go_on.wait(10)
        ended.set()
        if fails:
            raise OSError("broken disk")

    task = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(began.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert ("broken disk" in capfd.readouterr().out) is fails
