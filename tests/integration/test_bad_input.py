"""Bad input to whole processes: one sentence that names the thing, the documented exit code, and nothing lost.

The daemon's own log lines may surround the sentence; a traceback may not, unless `--debug` asks for it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment, consumerd_command, format_toml
from consumerd.net.zk.session import Session
from consumerd.wire.v07 import Codec

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


def assert_one_sentence(outcome: Any, code: ExitCode, *words: str) -> None:
    """The promise about all bad input."""
    assert outcome.code == code, outcome.stderr
    assert len(outcome.sentences) == 1, outcome.stderr
    assert outcome.sentences[0].startswith("consumerd: "), outcome.stderr
    for word in words:
        assert word in outcome.sentences[0], outcome.sentences[0]
    assert "Traceback" not in outcome.stderr
    assert not [event for event in outcome.events if "exception" in event]


# -- the configuration and the handler


async def test_rejects_invalid_configurations(world: Any, cli: Any) -> None:
    # The many ways to be wrong are in tests/unit/daemon; here it is what a process makes of them.
    good = format_toml(world.config())
    nowhere = {"name": "null", "on_failure": "dead_letter", "dead_letter": "/dev/null/dead"}
    cases = [
        (
            "run",
            world.write(good + "[commit]\nintervall = 1\n"),
            "unknown key 'commit.intervall', did you mean 'interval'?",
        ),
        ("check", world.write(good + "[commit\n"), "is not TOML"),
        ("check", world.write('[group]\nid = "g"\nwhitelist = "a(b"\n'), "group.whitelist: "),
        ("run", world.write(good.replace(world.chroot, "host:port")), "host:port"),
        ("check", world.write(format_toml(world.config(group={"id": ".."}))), "'..' cannot be a group"),
        (
            "check",
            world.write(format_toml(world.config(handler=nowhere))),
            "handler.dead_letter: /dev/null/dead cannot",
        ),
        ("run", "/no/such/file.toml", "cannot read the configuration /no/such/file.toml"),
    ]
    outcomes = await asyncio.gather(*(cli(command, "-c", path, seconds=120) for command, path, _ in cases))
    for outcome, (_, _, words) in zip(outcomes, cases, strict=True):
        assert_one_sentence(outcome, ExitCode.CONFIG, words)


async def test_treats_sys_exit_of_a_handler_as_failure(world: Any, cli: Any) -> None:
    """A service manager takes exit code 0 for a requested stop, and does not start the daemon again."""
    await world.broker()
    await world.append(TP, b"one")

    def exiting(method: str) -> dict[str, Any]:
        return {
            "handler": {"name": "bad_handlers:Exiting", "options": {"method": method}, "max_attempts": 2},
            "group": {"id": method.strip("_")},
        }

    for command in ("check", "run"):
        outcome = await world.run(command=command, **exiting("__init__"))
        assert_one_sentence(outcome, ExitCode.HANDLER, "called sys.exit(0) in its constructor")
    assert await world.zk.exists("/consumers") is None  # nothing was joined
    outcome = await world.run(**exiting("start"))
    assert_one_sentence(outcome, ExitCode.HANDLER_FAILED, "cannot be started: start() failed 2 times", "sys.exit(0)")
    outcome = await world.run(**exiting("handle"))
    assert_one_sentence(outcome, ExitCode.HANDLER_FAILED, "failed 2 times at offset 0 of t/0-0", "sys.exit(0)")
    daemon = await world.daemon(**exiting("stop"))
    assert await daemon.stop() == ExitCode.HANDLER_FAILED
    assert "cannot be stopped: stop() failed 2 times" in daemon.child.output()
    assert not await world.zk.children("/consumers/stop/ids")


async def test_shows_tracebacks_with_debug_only(world: Any, cli: Any) -> None:
    outcome = await cli("--debug", "run", "-c", "/no/such/file.toml")
    assert outcome.code == ExitCode.CONFIG
    assert "Traceback" in outcome.stderr
    assert outcome.sentences[-1].startswith("consumerd: cannot read the configuration /no/such/file.toml")


# -- ZooKeeper


async def test_reports_an_unreachable_or_refusing_zookeeper(world: Any) -> None:
    dead = f"127.0.0.1:{free_port()}"
    secret = Session(
        world.chroot,
        clock=SystemClock(),
        rng=random.Random(1),
        auth=[("digest", "owner:secret")],
        acl="creator-all",
    )
    async with secret:
        await secret.create("/private", None)
        unreachable, refused, forbidden = await asyncio.gather(
            world.run(zookeeper={"connect": f"{dead}/kafka", "connection_timeout": 0.5}),
            world.run(zookeeper={"auth": ["plain:user:password"]}),
            world.run(zookeeper={"connect": f"{world.chroot}/private/kafka", "allow_empty": True}),
        )
    assert_one_sentence(
        unreachable, ExitCode.ZOOKEEPER, f"{dead}: Connection refused", "zookeeper.connect", "tried for 0.5 s"
    )
    assert_one_sentence(refused, ExitCode.ZOOKEEPER, "refused the 'plain' credentials")
    assert_one_sentence(forbidden, ExitCode.ZOOKEEPER, "denies access", "/private/kafka")


# -- topics


async def test_rejects_a_missing_topic(world: Any, cli: Any) -> None:
    await world.zk.ensure("/brokers/ids")
    outcome = await cli("consume", "--zookeeper", world.chroot, "--group", "look", "--topic", "nope", "--exit-at-end")
    assert_one_sentence(outcome, ExitCode.NOT_FOUND, "'nope'")
    daemon = await world.daemon(group={"dialect": "0.7"})  # which no broker says yet
    assert (await daemon.wait_for_event("waiting_for_topics", 60))["topics"] == ["t"]
    await world.broker()
    await world.append(TP, b"here")
    await world.until_printed(daemon, "here")
    assert len([event for event in daemon.events() if event["event"] == "waiting_for_topics"]) == 1
    assert await daemon.stop() == ExitCode.OK


# -- members


async def test_rejects_a_consumer_id_that_is_a_persistent_node(world: Any) -> None:
    await world.zk.ensure("/consumers/g/ids/g_pod-0")
    outcome = await world.run(group={"consumer_id": "pod-0", "dialect": "0.7"})
    assert_one_sentence(outcome, ExitCode.ID_TAKEN, "'g_pod-0' is held by a persistent node", "delete it, or choose")
    assert await world.zk.children("/consumers/g/ids") == ["g_pod-0"]


# It waits for 60 s, as it must. Every day that is simulated: tests/simulation/test_handover.py, in
# test_member_stops_if_a_node_outlives_any_dead_session, and with a live twin that goes on reading:
# tests/unit/member/consumer/test_consumer.py, in test_fails_if_id_is_held_by_live_session.
@pytest.mark.long
async def test_rejects_a_consumer_id_of_a_live_member(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    first = await world.daemon("first", group={"consumer_id": "pod-0"})
    await world.until_printed(first, "one")
    stat = await world.zk.exists("/consumers/g/ids/g_pod-0")
    outcome = await world.run(group={"consumer_id": "pod-0"}, seconds=150.0)  # it may be the node of a dead process
    assert_one_sentence(outcome, ExitCode.ID_TAKEN, "g_pod-0", "give each member its own consumer_id")
    await world.append(TP, b"two")
    await world.until_printed(first, "one", "two")
    assert await world.zk.exists("/consumers/g/ids/g_pod-0") == stat  # the live one was not disturbed
    assert [event["event"] for event in first.events()].count("rebalanced") == 1
    assert await first.stop() == ExitCode.OK


async def test_non_numeric_committed_offset_holds_back_its_partition_alone(world: Any) -> None:
    other = TopicPartition("t", 0, 1)
    await world.broker(partitions=2)
    end = await world.append(TP, b"one")
    other_end = await world.append(other, b"other")
    await world.zk.ensure("/consumers/g/offsets/t")
    await world.zk.create("/consumers/g/offsets/t/0-0", b"0x10")
    daemon = await world.daemon()
    await world.until_printed(daemon, "other")
    failed = await daemon.wait_for_event("position_lookup_failed", 60, partition="t/0-0")
    assert "'0x10'" in failed["reason"]
    assert "/consumers/g/offsets/t/0-0" in failed["reason"]
    assert (await world.zk.get("/consumers/g/offsets/t/0-0"))[0] == b"0x10"
    await world.zk.set("/consumers/g/offsets/t/0-0", b"0")
    await world.until_printed(daemon, "other", "one")
    assert await daemon.stop() == ExitCode.OK
    assert (await world.offset(TP), await world.offset(other)) == (end, other_end)
    assert [event["event"] for event in daemon.events()].count("position_lookup_failed") == 1


# -- data


async def test_corrupt_segment_follows_its_policy(world: Any) -> None:
    other = TopicPartition("t", 0, 1)
    await world.broker(partitions=2)
    sound = await world.append(TP, b"one", b"two")
    broken_end = await world.append(TP, b"broken")
    end = await world.append(TP, b"three", codec=Codec.GZIP)
    other_end = await world.append(other, b"other")
    with world.segment(TP).open("r+b") as segment:
        segment.seek(sound + 12)
        segment.write(b"\xff")
    outcome = await world.run()
    assert_one_sentence(outcome, ExitCode.CORRUPT, f"t/0-0 is corrupt at offset {sound} ", "fetch.corrupt")
    assert outcome.stdout.count('"payload":"one"') == outcome.stdout.count('"payload":"two"') == 1
    assert await world.offset(TP) == sound  # what came before it is committed
    parking = await world.daemon("parking", fetch={"corrupt": "park"})
    await parking.wait_for_event("partition_parked", 60, partition="t/0-0")
    other_end = await world.append(other, b"more")
    await world.until(lambda: "more" in world.printed(parking))
    assert await parking.stop() == ExitCode.OK
    assert (await world.offset(TP), await world.offset(other)) == (sound, other_end)
    skipping = await world.daemon("skipping", fetch={"corrupt": "skip"})
    await world.until_printed(skipping, "three")
    skipped = await skipping.wait_for_event("message_skipped", 60, partition="t/0-0")
    assert (skipped["offset"], skipped["next_offset"]) == (sound, broken_end)
    assert await skipping.stop() == ExitCode.OK
    assert await world.offset(TP) == end


async def test_offset_out_of_range_follows_its_policy(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    await world.zk.ensure("/consumers/g/offsets/t")
    await world.zk.create("/consumers/g/offsets/t/0-0", b"4711")
    outcome = await world.run(fetch={"out_of_range": "fail"})
    assert_one_sentence(outcome, ExitCode.BROKER, "t/0-0 has no offset 4711", "fetch.out_of_range")
    assert await world.offset(TP) == 4711
    daemon = await world.daemon(fetch={"out_of_range": "earliest"})
    await world.until_printed(daemon, "one")


# -- handlers that misbehave


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_abandons_a_handler_that_ignores_cancellation(world: Any, loop: str) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Stubborn"}, daemon={"loop": loop})
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())
    daemon.terminate()
    await daemon.wait_for_event("stopping", 60)
    daemon.terminate()
    assert await daemon.wait(60) == ExitCode.FORCED
    lines = [line for line in daemon.child.output().splitlines() if not line.startswith("{")]
    assert lines == [
        "consumerd: the stop was forced (second signal, SIGTERM); unfinished messages are delivered again."
    ]
    assert await world.offset(TP) is None
    # Its nodes stood as long as it worked; now they expire.
    second = await world.daemon("second")
    await world.until_printed(second, "one")


async def test_exits_when_the_reader_closes_the_output(world: Any, cli: Any) -> None:
    await world.broker()
    end = await world.append(TP, *(b"%d" % number for number in range(20_000)))
    path = world.write(format_toml(world.config()))
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("run", "-c", path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # as `| head -1` does
    errors = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
    assert await process.wait() == ExitCode.PIPE
    sentences = [line for line in errors.splitlines() if not line.startswith("{")]
    assert sentences == ["consumerd: the reader of the output closed it."]
    committed = await world.offset(TP)
    assert committed is not None
    assert committed < end
