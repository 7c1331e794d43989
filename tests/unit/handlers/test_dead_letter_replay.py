from __future__ import annotations

import errno
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ConfigError, HandlerFailedError, HandlerLoadError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import (
    Batch,
    FileDeadLetters,
    Handler,
    KeyedMessage,
    Letter,
    Message,
    RetryPolicy,
    load_handler,
    make_handler,
    message_handler,
    retrying,
)
from consumerd.handlers.dead_letter_files import letter_files
from consumerd.handlers.dead_letter_progress import Receiver, ReplayProgress, Selection, letters_with_receivers
from consumerd.handlers.dead_letter_replay import (
    HandlerTarget,
    TopicTarget,
    replay,
    require_replayable,
)
from consumerd.handlers.dead_letters import StoredLetter


class Collecting:
    """A target that fails `failures` times, each time after it has stored the message."""

    def __init__(self, failures: int = 0) -> None:
        self.offsets: list[int] = []
        self.failures = failures

    async def replay(self, letters: Sequence[StoredLetter]) -> None:
        if self.failures:
            self.failures -= 1
            raise HandlerFailedError("not now.")
        self.offsets += [letter.identity.offset for letter in letters]


async def letters_at(
    path: Path,
    clock: Any,
    *messages: Any,
    error: Exception | None = None,
    size: int = 1 << 20,
    log: LogId = UNKNOWN_LOG,
) -> None:
    file = FileDeadLetters(path, clock=clock, file_size=size)
    for message in messages:
        await file.write([Letter(message, error or ValueError("no"), 1, log=log)])
    await file.stop()


def old(offset: int, topic: str = "t", partition: int = 0) -> Message:
    return Message(TopicPartition(topic, 0, partition), offset, 0, offset + 20, b"%d" % offset)


X = Receiver("handler x")


def progress(path: Path, selection: Selection = Selection(), receiver: Receiver = X) -> ReplayProgress:  # noqa: B008
    return ReplayProgress(path, selection=selection, receiver=receiver)


async def test_what_was_replayed_is_not_replayed_again_also_after_files_were_renamed(
    tmp_path: Path, clock: Any
) -> None:
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, *map(old, range(5)), size=600)
    target = Collecting()
    await replay(letter_files(path), target, progress(noted), Selection())
    assert target.offsets == [*range(5)]
    await letters_at(path, clock, *map(old, range(5, 9)), size=300)
    assert len(letter_files(path)) > 3
    result = await replay(letter_files(path), target, progress(noted), Selection())
    assert target.offsets == [*range(9)]
    assert result.letters == 4


async def test_a_replay_goes_on_at_the_group_that_failed(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.handlers.dead_letter_replay._GROUP", 2)
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, *map(old, range(5)))

    class Third(Collecting):
        async def replay(self, letters: Sequence[StoredLetter]) -> None:
            if letters[0].identity.offset == 2 and self.failures:
                await super().replay(letters)
            failures, self.failures = self.failures, 0
            await super().replay(letters)
            self.failures = failures

    target = Third(1)
    with pytest.raises(HandlerFailedError):
        await replay([path], target, progress(noted), Selection())
    assert target.offsets == [0, 1]
    await replay([path], target, progress(noted), Selection())
    assert target.offsets == [0, 1, 2, 3, 4]


async def test_progress_counts_for_one_selection_and_one_target(tmp_path: Path, clock: Any) -> None:
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, old(1, "a"), old(2, "b"))
    await letters_at(path, clock, old(3, "a"), error=OSError("full"))
    for selection, wanted in (
        (Selection(topic="a"), [1, 3]),
        (Selection(error_type="OSError"), [3]),
        (Selection(), [1, 2, 3]),
    ):
        target = Collecting()
        await replay([path], target, progress(noted, selection), selection)
        assert target.offsets == wanted


async def test_each_receiver_gets_every_letter_once(tmp_path: Path, clock: Any) -> None:
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, old(1), old(2))
    receivers = [X, Receiver("handler y"), Receiver("handler x", identity="b"), Receiver("handler x", identity="c")]
    for wanted in ([1, 2], []):
        for receiver in receivers:
            target = Collecting()
            await replay([path], target, progress(noted, receiver=receiver), Selection())
            assert target.offsets == wanted
    assert "identity" not in noted.read_text()
    assert progress(noted, receiver=Receiver("handler z")).others == ["handler x", "handler y"]
    assert progress(noted).others == []


async def test_progress_of_an_earlier_release_counts_for_the_first_receiver_with_the_name(
    tmp_path: Path, clock: Any
) -> None:
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, old(1), old(2))
    await replay([path], Collecting(), progress(noted), Selection())
    (record,) = json.loads(noted.read_text())["replayed"]
    noted.write_text(json.dumps({"replayed": {'["handler x", null, null]': record["files"]}}))
    for receiver, adopted, wanted in (
        (Receiver("handler y"), False, [1, 2]),
        (Receiver("handler x", "at a", "a"), True, []),
        (Receiver("handler x", "at a", "a"), False, []),
        (Receiver("handler x", "at b", "b"), False, [1, 2]),
    ):
        target, known = Collecting(), progress(noted, receiver=receiver)
        assert known.is_adopted == adopted
        await replay([path], target, known, Selection())
        assert target.offsets == wanted


async def test_lines_name_the_receivers_that_they_were_replayed_to(tmp_path: Path, clock: Any) -> None:
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, old(1, "a"), old(2, "b"))
    assert [receivers for _, receivers in letters_with_receivers([path], noted)] == [[], []]
    await replay([path], Collecting(), progress(noted), Selection())
    chosen = Selection(topic="b")
    await replay([path], Collecting(), progress(noted, chosen, Receiver("topic c", "at d")), chosen)
    await letters_at(path, clock, old(3, "b"))
    told = [receivers for _, receivers in letters_with_receivers([path], noted)]
    assert told == [["handler x"], ["handler x", "topic c at d"], []]


async def test_progress_that_cannot_be_written_stops_before_the_first_letter(tmp_path: Path, clock: Any) -> None:
    path, target = tmp_path / "dead.ndjson", Collecting()
    await letters_at(path, clock, old(1))
    with pytest.raises(
        ConfigError, match=r"progress of the replay .* No such file .* nothing was delivered.*--progress"
    ):
        await replay([path], target, progress(tmp_path / "missing" / "progress"), Selection())
    assert target.offsets == []


@pytest.mark.parametrize("error", [OSError(errno.EPIPE, "Broken pipe"), PermissionError(errno.EACCES, "denied")])
async def test_an_error_of_the_target_is_not_one_of_the_dead_letters(
    tmp_path: Path, clock: Any, error: OSError
) -> None:
    path = tmp_path / "dead.ndjson"
    await letters_at(path, clock, old(1))

    class Broken(Collecting):
        async def replay(self, letters: Sequence[StoredLetter]) -> None:
            raise error

    with pytest.raises(OSError, match=error.strerror) as caught:
        await replay([path], Broken(), progress(tmp_path / "p"), Selection())
    assert caught.value is error


async def test_a_file_that_is_renamed_while_it_is_replayed_does_not_confuse_the_progress(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.handlers.dead_letter_replay._GROUP", 1)
    path, noted = tmp_path / "dead.ndjson", tmp_path / "progress"
    await letters_at(path, clock, old(1), old(2))

    class Renaming(Collecting):
        async def replay(self, letters: Sequence[StoredLetter]) -> None:
            await super().replay(letters)
            if path.exists() and self.offsets == [1]:
                path.rename(tmp_path / "dead.000001.ndjson")
                await letters_at(path, clock, old(3), old(4), old(5))

    target = Renaming()
    await replay(letter_files(path), target, progress(noted), Selection())
    await replay(letter_files(path), target, progress(noted), Selection())
    assert target.offsets == [1, 2, 3, 4, 5]


async def test_counts_invalid_lines_and_replays_the_rest(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    await letters_at(path, clock, old(1))
    with path.open("ab") as file:
        file.write(b"nonsense\n")
    await letters_at(path, clock, old(2))
    target = Collecting()
    result = await replay([path], target, progress(tmp_path / "p"), Selection())
    assert target.offsets == [1, 2]
    assert (result.letters, result.unreadable) == (2, 1)
    assert "not a JSON object" in result.first_problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"replayed": {"[\\"x\\", null, null]": {"y": -1}}}',
        '{"replayed": {"x": 5}}',
        '{"replayed": []}',
        '{"salt": "00", "replayed": [{"receiver": 1, "selection": {}, "key": "", "files": {}}]}',
        '{"salt": "00", "replayed": [{"receiver": "r", "selection": {"x": "y"}, "key": "", "files": {}}]}',
        '{"salt": "", "replayed": [{"receiver": "", "selection": {}, "key": "", "files": {"": 9223372036854775808}}]}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
async def test_progress_that_is_not_ours_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(ConfigError, match="--progress"):
        progress(tmp_path / "p")


async def test_a_handler_gets_batches_of_one_partition_with_whole_identities(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    keyed = KeyedMessage(TopicPartition.numbered("k", 3), 7, 0, 8, None, b"k", 123, 0, (("h", b"\xff"),))
    await letters_at(path, clock, old(1), old(40), old(2, partition=1), keyed)
    batches: list[tuple[str, list[Any], int, int]] = []

    async def handle(batch: Batch) -> None:
        batches.append((str(batch.partition), list(batch.messages()), batch.start_offset, batch.next_offset))

    await replay([path], HandlerTarget(make_handler(handle)), progress(tmp_path / "p"), Selection())
    assert [(name, start) for name, _, start, _ in batches] == [("t/0-0", 1), ("t/0-1", 2), ("k/3", 7)]
    assert [message.identity for message in batches[0][1]] == [("t", 0, 0, 1, 0), ("t", 0, 0, 40, 0)]
    assert batches[2][1] == [keyed]


async def test_a_handler_gets_batches_of_one_log(tmp_path: Path, clock: Any) -> None:
    path, batches = tmp_path / "dead.ndjson", []
    logs = [UNKNOWN_LOG, LogId(b"\x01" * 16, 3), LogId(b"\x01" * 16, 4), LogId(b"\x02" * 16, 4)]
    for log in logs:
        await letters_at(path, clock, old(1), old(40), log=log)

    async def handle(batch: Batch) -> None:
        batches.append((batch.topic_id, batch.leader_epoch, len(batch)))

    await replay([path], HandlerTarget(make_handler(handle)), progress(tmp_path / "p"), Selection())
    assert batches == [(log.topic_id_text, log.leader_epoch, 2) for log in logs]


async def test_a_handler_that_goes_message_by_message_and_its_policy_work_on_letters(
    tmp_path: Path, clock: Any
) -> None:
    path, again = tmp_path / "dead.ndjson", tmp_path / "again.ndjson"
    await letters_at(path, clock, *map(old, range(4)))
    seen: list[int] = []

    @message_handler
    async def each(message: Message) -> None:
        if message.offset == 2:
            raise ValueError("still no")
        seen.append(message.offset)

    policy = RetryPolicy(max_attempts=2, on_failure="dead_letter")
    failed = FileDeadLetters(again, clock=clock)
    handler = retrying(each, policy, clock=clock, rng=random.Random(1), dead_letters=failed)
    await replay([path], HandlerTarget(handler), progress(tmp_path / "p"), Selection())
    assert seen == [0, 1, 3]
    target = Collecting()
    await replay([again], target, progress(tmp_path / "q"), Selection())
    assert target.offsets == [2]


async def test_a_topic_gets_messages_as_they_were(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    keyed = KeyedMessage(TopicPartition.numbered("k", 3), 7, 0, 8, b"v", b"k", 123, 0, (("h", b"\xff"),))
    await letters_at(path, clock, old(1), keyed)
    for headers in (True, False):
        sent: list[Any] = []

        class Producer:
            async def send_all(self, data: Any, *, merge: bool = False) -> None:
                sent.extend(data)  # noqa: B023

        target = TopicTarget(Producer(), "again", headers=headers)
        await replay([path], target, progress(tmp_path / f"p{headers}"), Selection())
        assert [(each.topic, each.payloads) for each in sent] == [("again", [b"1"]), ("again", [b"v"])]
        wanted = (b"k", (("h", b"\xff"),), 123) if headers else (None, (), None)
        assert (sent[1].key, sent[1].headers, sent[1].timestamp) == wanted


async def test_a_sink_that_keeps_positions_is_refused(tmp_path: Path) -> None:
    class Plain(Handler):
        async def handle(self, batch: Batch) -> None: ...

    require_replayable(Plain(), "plain")
    require_replayable(load_handler("null"), "null")
    with pytest.raises(HandlerLoadError, match="'files' keeps the positions"):
        require_replayable(load_handler("files", {"directory": str(tmp_path)}), "files")
