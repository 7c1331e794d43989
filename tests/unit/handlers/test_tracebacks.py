"""Short tracebacks of handlers' errors: the handler's frame first, without local variables."""

from __future__ import annotations

import asyncio
import json
import linecache
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.handlers import (
    Batch,
    FileDeadLetters,
    Handler,
    Message,
    RetryPolicy,
    make_handler,
    message_handler,
    retrying,
)
from consumerd.handlers.processes import ProcessHandler
from consumerd.handlers.tracebacks import MAX_TRACEBACK, brief, short_traceback, text_of

MakeBatch = Callable[..., Batch]


HERE = __file__


class App:
    """A handler as a user writes it."""

    def row(self, text: str) -> str:
        record: dict[str, str] = json.loads(text)
        password = "hunter2"
        return record["id"] + password

    def store(self, text: str) -> str:
        try:
            return self.row(text)
        except KeyError as error:
            raise ValueError("the row has no id") from error

    async def wait(self) -> None:
        await asyncio.sleep(60)


class UnreadableError(Exception):
    """One that cannot be printed."""

    def __str__(self) -> str:
        return self.args[7]  # type: ignore[no-any-return]


def test_text_of_a_group_is_that_of_its_first_error() -> None:
    inner = ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("id"), OSError("gone")])
    group = ExceptionGroup("unhandled errors in a TaskGroup", [inner, ValueError("late")])
    assert brief(group) == "ExceptionGroup: KeyError: 'id', and 2 more"
    assert text_of(ExceptionGroup("", [ValueError("the row has no id")])) == "ValueError: the row has no id"


async def test_error_that_cannot_be_printed_is_a_failure_as_others(
    make_batch: MakeBatch, clock: Any, tmp_path: Path
) -> None:
    async def handle(batch: Batch) -> None:
        raise UnreadableError

    letters = FileDeadLetters(tmp_path / "dead.ndjson", clock=clock)
    policy = RetryPolicy(max_attempts=2, on_failure="dead_letter")
    handler = retrying(make_handler(handle), policy, clock=clock, rng=random.Random(1), dead_letters=letters)
    with capture_logs() as logs:
        await handler.handle(make_batch(b"a"))
    said = "its text cannot be read, str() raised IndexError"
    assert {each["reason"] for each in logs} == {f"UnreadableError: {said}"}
    assert json.loads((tmp_path / "dead.ndjson").read_text())["error"] == said


def caught(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def functions(traceback: str) -> list[str]:
    return [line.partition(" in ")[2].partition(":")[0] for line in traceback.splitlines() if " in " in line]


def test_the_handlers_frame_comes_first_with_its_source_and_without_values() -> None:
    text = short_traceback(caught(lambda: App().row("{}")))
    first = text.splitlines()[0]
    assert first.startswith(f"{HERE}:")
    assert first.endswith(' in App.row: return record["id"] + password')
    assert "hunter2" not in text


def test_libraries_below_the_handlers_frame_come_after_it() -> None:
    text = short_traceback(caught(lambda: App().row("no json")))
    assert functions(text)[0] == "App.row"
    assert functions(text)[-1] == "loads"
    assert "raw_decode" in text


async def test_the_frame_of_a_plain_function_of_messages_comes_first(make_batch: MakeBatch) -> None:
    @message_handler
    def store(message: Message) -> None:
        App().store(message.payload.decode())

    with pytest.raises(ValueError, match="no id") as caught:
        await store.handle(make_batch(b'{"id": "1"}', b"{}"))
    found = functions(short_traceback(caught.value))
    assert [name.rpartition(".")[2] for name in found[:2]] == ["store", "store"]
    assert found[0] == "App.store"
    assert not any("_one_by_one" in name for name in found)


def test_causes_are_named_with_their_frames() -> None:
    lines = short_traceback(caught(lambda: App().store("{}"))).splitlines()
    assert lines[0].endswith('raise ValueError("the row has no id") from error')
    assert "from KeyError: 'id'" in lines
    assert lines[lines.index("from KeyError: 'id'") + 1].endswith('return record["id"] + password')


def test_the_first_error_of_a_group_has_frames() -> None:
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(App().row, "{}"))

    assert "in App.row: " in short_traceback(caught(lambda: asyncio.run(both())))


def test_frames_of_an_installed_handler_come_before_those_of_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for name, source in (
        ("lib_one", "def fail():\n    raise KeyError('id')\n"),
        ("app_one", "import lib_one\n\ndef handle():\n    lib_one.fail()\n"),
    ):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(installed))
    try:
        app = __import__("app_one")
        assert functions(short_traceback(_without_ours(caught(app.handle))))[:2] == ["handle", "fail"]
    finally:
        for name in ("app_one", "lib_one"):
            sys.modules.pop(name, None)


def _without_ours(error: Exception) -> Exception:
    """As if the daemon, not this test, had called it."""
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def test_is_short_whatever_the_depth_and_the_lines() -> None:
    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise ValueError("x" * 100_000) from ValueError("y" * 100_000)

    text = short_traceback(caught(lambda: deeper(200)))
    assert 0 < len(text) <= MAX_TRACEBACK
    assert len(text.splitlines()) <= 10


def test_code_without_a_file_has_frames_without_source() -> None:
    linecache.clearcache()
    namespace: dict[str, Any] = {}
    exec("def handle():\n    raise KeyError('id')", namespace)
    assert short_traceback(_without_ours(caught(namespace["handle"]))).splitlines() == ["<string>:2 in handle"]


@pytest.mark.parametrize("on_failure", ["skip", "stop"])
async def test_each_failed_attempt_is_logged_with_a_traceback(
    make_batch: MakeBatch, clock: Any, on_failure: Any
) -> None:
    async def handle(batch: Batch) -> None:
        App().row("{}")

    policy = RetryPolicy(max_attempts=2, on_failure=on_failure)
    handler = retrying(make_handler(handle), policy, clock=clock, rng=random.Random(1))
    with capture_logs() as logs:
        await asyncio.gather(handler.handle(make_batch(b"a")), return_exceptions=True)
    last = "messages_skipped" if on_failure == "skip" else "handler_failed"
    assert [each["event"] for each in logs] == ["handler_failed", last]
    assert all(functions(each["traceback"])[:2] == ["App.row", f"{handle.__qualname__}"] for each in logs)


async def test_a_dead_letter_has_the_traceback(make_batch: MakeBatch, clock: Any, tmp_path: Path) -> None:
    async def handle(batch: Batch) -> None:
        App().row("{}")

    place = FileDeadLetters(tmp_path / "dead.ndjson", clock=clock)
    policy = RetryPolicy(max_attempts=1, on_failure="dead_letter")
    handler = retrying(make_handler(handle), policy, clock=clock, rng=random.Random(1), dead_letters=place)
    with capture_logs():
        await handler.handle(make_batch(b"a", b"b"))
    await place.stop()
    records = [json.loads(line) for line in (tmp_path / "dead.ndjson").read_bytes().splitlines()]
    assert [functions(each["traceback"])[0] for each in records] == ["App.row"] * 2


async def test_a_call_that_timed_out_shows_where_it_waited(make_batch: MakeBatch, clock: Any) -> None:
    async def handle(batch: Batch) -> None:
        await App().wait()

    policy = RetryPolicy(max_attempts=1, on_failure="skip", timeout=0.01)
    handler = retrying(make_handler(handle), policy, clock=clock, rng=random.Random(1))
    with capture_logs() as logs:
        await handler.handle(make_batch(b"a"))
    assert functions(logs[0]["traceback"])[0] == "App.wait"


async def test_an_error_of_a_worker_process_has_its_frames(
    make_batch: MakeBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frames_of_worker.py").write_text("def handle(messages):\n    {}['id']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = ProcessHandler("frames_of_worker:handle", {}, 1)
    await handler.start(None)  # type: ignore[arg-type]
    try:
        with pytest.raises(KeyError) as raised:
            await handler.handle(make_batch(b"a"))
    finally:
        await handler.stop()
    first = short_traceback(raised.value).splitlines()[0]
    assert first == f"{tmp_path}/frames_of_worker.py:2 in handle: {{}}['id']"


async def test_other_tasks_have_their_turn_while_each_message_is_skipped(make_batch: MakeBatch, clock: Any) -> None:
    class Fails(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(0)
            raise ValueError

    turns = 0

    async def beat() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    handler = retrying(
        Fails(), RetryPolicy(max_attempts=1, on_failure="skip"), clock=clock, rng=random.Random(1), name="f"
    )
    beating = asyncio.create_task(beat())
    with capture_logs() as logs:
        await handler.handle(make_batch(*[b"x"] * 50))
    beating.cancel()
    assert len(logs) == 50
    assert turns >= 50
