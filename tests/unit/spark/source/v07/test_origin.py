"""Live brokers as the options list them: ranges, segments, time, and brokers that stop."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.errors import BrokerReadError, DataLossError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import BrokerRange, V07Split
from consumerd.spark.source.v07.reading import read_split
from consumerd.testing.brokers import LoopbackBroker
from consumerd.testing.plugin import BrokerFactory
from consumerd.wire.compression import Codec


@pytest.fixture
def broker(consumerd_broker_factory: BrokerFactory) -> LoopbackBroker:
    """With four partitions and segments of some messages."""
    return consumerd_broker_factory(broker_id=7, partitions=4, settings={"log.file.size": 500})


def options(broker: LoopbackBroker, **more: Any) -> Any:
    given = {"brokers": f"7={broker.address}", "subscribe": "t", "partitions": 2, **more}
    return read_options({name: str(value) for name, value in given.items() if value is not None})


def plan(broker: LoopbackBroker, **more: Any) -> list[V07Split]:
    splits = plan_batch(options(broker, **more), Pruning())
    assert all(isinstance(split, V07Split) for split in splits)
    return splits  # type: ignore[return-value]  # as was asserted


def values(splits: list[V07Split]) -> list[bytes]:
    request = ReadRequest(("value",), ParseMode.FAILFAST)
    return [value for split in splits for batch in read_split(split, request) for value in batch["value"].to_pylist()]


def fill(broker: LoopbackBroker, partition: int = 0, sets: int = 8) -> list[bytes]:
    rng = random.Random(partition)
    every = []
    for _ in range(sets):
        payloads = [rng.randbytes(rng.randrange(90)) for _ in range(5)]
        broker.produce("t", payloads, partition=partition, codec=rng.choice(list(Codec)))
        every += payloads
    return every


def test_reads_all_partitions_with_any_cuts(broker: LoopbackBroker) -> None:
    wanted = [*fill(broker, 0), *fill(broker, 1)]
    segments = plan(broker, maxSplitBytes=0)
    assert values(segments) == wanted
    assert {split.location for split in segments} == {BrokerRange(broker.host, broker.port)}
    assert {split.broker_partition for split in segments} == {"7-0", "7-1"}
    files = [path.name for number in (0, 1) for path in sorted((broker.log_directory / f"t-{number}").iterdir())]
    assert [f"{split.start:020d}.kafka" for split in segments] == files[: len(segments)]
    cut = plan(broker, maxSplitBytes=150)
    assert len(cut) > len(segments)
    assert values(cut) == wanted
    few = {"subscribe": None, "partitions": None, "assign": '{"t": ["7-1", "7-3"], "u": ["7-0"]}'}
    assert values(plan(broker, **few)) == wanted[40:]
    end = broker.end("t", 1)
    with pytest.raises(OptionError, match=f"names {end - 1} of t/7-1, where no message begins"):
        plan(broker, startingOffsets='{"t": {"7-0": -1, "7-1": %d}}' % (end - 1))  # noqa: UP031 - braces
    assert plan(broker, startingOffsets='{"t": {"7-0": -1, "7-1": %d}}' % end) == []  # noqa: UP031


def test_asks_the_broker_for_offsets_by_time(broker: LoopbackBroker) -> None:
    wanted = fill(broker)
    assert values(plan(broker, startingTimestamp=1)) == wanted, "all of it is younger"
    assert plan(broker, startingTimestamp=4_000_000_000_000) == []


def test_rejects_missing_partitions_and_brokers(broker: LoopbackBroker) -> None:
    found = {"subscribe": None, "partitions": None}
    with pytest.raises(NotFoundError, match="option assign names t/8-0, but option brokers has no broker 8"):
        plan(broker, **found, assign='{"t": ["8-0"]}')
    with pytest.raises(OptionError, match="invalid option assign: 'x' is not a broker-partition name such as 0-3"):
        plan(broker, **found, assign='{"t": ["x"]}')
    assert plan(broker, **found, assign='{"t": [0]}') == plan(broker, **found, assign='{"t": ["7-0"]}')
    assert plan(broker, subscribe="nothing") == [], "a broker answers for topics that it has not"
    with pytest.raises(BrokerReadError, match="closed the connection before it responded to a request for t/5"):
        plan(broker, **found, assign='{"t": ["7-5"]}')


def test_stream_survives_a_broker_restart_and_fails_without_it(broker: LoopbackBroker) -> None:
    fill(broker)
    follower = StreamPlanner(options(broker, startingOffsets="earliest"))
    start = follower.initial()
    assert follower.latest(start, None)["t"]["7-0"] == broker.end("t")
    broker.restart()
    fill(broker)
    again = StreamPlanner(options(broker))
    ends = []
    end = start
    while (further := again.latest(end, 600)) != end:
        assert values([split for split in again.splits(end, further) if isinstance(split, V07Split)])
        ends.append(further["t"]["7-0"])
        end = further
    assert ends[-1] == broker.end("t")
    assert len(ends) > 3
    broker.kill()
    with pytest.raises(BrokerReadError, match=f"cannot connect to broker {broker.address}: "):
        StreamPlanner(options(broker)).latest(end, None)


def test_a_checkpoint_of_a_broker_that_was_rebuilt_is_data_loss(
    consumerd_broker_factory: BrokerFactory, broker: LoopbackBroker
) -> None:
    broker.produce("t", [b"former message"] * 10)
    follower = StreamPlanner(options(broker, startingOffsets="earliest"))
    end = follower.latest(follower.initial(), None)
    broker.stop()
    rebuilt = consumerd_broker_factory(broker_id=7, partitions=4)
    rebuilt.produce("t", [b"a message of the new log"] * 20)
    again = StreamPlanner(options(rebuilt))
    further = again.latest(end, None)
    reached = end["t"]["7-0"]
    size = rebuilt.end("t") // 20
    inside = reached - reached % size
    assert 0 < inside < reached
    with pytest.raises(
        DataLossError, match=f"t/7-0 was read up to {reached}, which is inside the .* begins at {inside}"
    ):
        again.splits(end, further)


def test_no_offset_inside_a_message_is_read_from(broker: LoopbackBroker) -> None:
    size = broker.produce("t", [b"a message of this log"])
    end = {"t": {"7-0": broker.produce("t", [b"a message of this log"] * 5)}}
    planner = StreamPlanner(options(broker))
    for at in range(3 * size):
        start = {"t": {"7-0": at}}
        if at % size:
            with pytest.raises(DataLossError, match=f"inside the message that begins at {at - at % size} now"):
                planner.splits(start, end)
        else:
            assert planner.splits(start, end)


def test_reconnects_after_a_kept_connection_was_closed(broker: LoopbackBroker) -> None:
    origin = open_origin(options(broker))
    before = origin.snapshot()["t", "7-0"].end
    broker.restart()
    fill(broker)
    assert origin.snapshot()["t", "7-0"].end == broker.end("t") > before


def test_rejects_a_server_that_returns_no_offsets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(bytes([0, 0, 0, 6, 0, 0, 0, 0, 0, 0]))

        thread = threading.Thread(target=answer)
        thread.start()
        given = {"brokers": f"0=127.0.0.1:{server.getsockname()[1]}", "assign": '{"t": ["0-0"]}', "timeoutMs": "5000"}
        with pytest.raises(BrokerReadError, match=r"returned no offsets of t/0-0; is it a 0\.7 broker"):
            open_origin(read_options(given)).snapshot()
        thread.join()
