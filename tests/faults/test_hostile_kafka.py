"""Whatever a broker of 0.8 or later sends: declared errors; once it comes to its senses, nothing was lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConsumerdError, ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import SaslMechanism
from consumerd.base.settings.group import CommitSection
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.handlers import Batch, Handler
from consumerd.member.consumer.backends_v08 import ClusterBackend
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.errors import CorruptPartitionError
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.sasl import Plain, SaslAuthenticator, Scram
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire import WireError
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08 import apis
from consumerd.wire.v08.message_types import HeartbeatRequest
from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.schema import Api
from tests.faults.hostile_kafka import BROKEN, LACKING, LYING, PARTITIONS, TOPIC, VERSIONS, HostileKafka
from tests.support.waiting import cancel

CLOCK = SystemClock()
PLACES = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]
SENT = {number: [b"%d-%d" % (number, n) for n in range(60)] for number in range(PARTITIONS)}
#: A broker's own list of versions is not spoiled: clients believe it for the whole connection.
ALL_BUT_VERSIONS = tuple(api for api in VERSIONS if api is not apis.API_VERSIONS)
#: Short timeouts for answers, and a low limit of their size.
HASTY = ClientSettings(
    connection=ConnectionSettings(connect_timeout=1, socket_timeout=0.3, max_frame_bytes=1 << 16),
    versions_timeout=0.3,
    retry_backoff_min=0.01,
    retry_backoff_max=0.05,
    retry_timeout=20,
)


def client_of(broker: HostileKafka, mechanism: Callable[[], SaslMechanism] | None = None) -> ClusterClient:
    authenticate = SaslAuthenticator(mechanism, timeout=0.3) if mechanism else None
    opener = ChannelOpener(
        functools.partial(connect, settings=HASTY.connection), HASTY, CLOCK, authenticate=authenticate
    )
    return ClusterClient([("127.0.0.1", broker.port)], opener, HASTY, clock=CLOCK, rng=random.Random(1))


def sometimes(
    rng: random.Random, kinds: tuple[str, ...], *, of: tuple[Api[Any, Any], ...] = ALL_BUT_VERSIONS, share: float = 0.5
) -> Any:
    """A spoiler of a share of all answers; those that only end by a timeout are rare."""
    slow = {"endless", "silence"}
    quick = [kind for kind in kinds if kind not in slow]

    def spoil(api: Api[Any, Any]) -> str | None:
        if api not in of or rng.random() > share:
            return None
        return rng.choice(kinds) if rng.random() < 0.1 else rng.choice(quick)

    return spoil


@pytest.mark.parametrize("kind", [*BROKEN, *LYING])
async def test_client_rejects_invalid_responses(kind: str) -> None:
    beat: HeartbeatRequest = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    async with HostileKafka(random.Random(kind)) as broker:
        questions: dict[Api[Any, Any], Callable[[ClusterClient], Any]] = {
            apis.API_VERSIONS: lambda client: client.refresh(),
            apis.METADATA: lambda client: client.refresh([TOPIC]),
            apis.FIND_COORDINATOR: lambda client: client.coordinator("g"),
            apis.HEARTBEAT: lambda client: client.call_coordinator("g", apis.HEARTBEAT, beat),
        }
        slow = kind in ("endless", "silence")
        for api, ask in questions.items():
            for _ in range(1 if slow else 15):
                async with client_of(broker) as client:
                    broker.spoil = lambda asked, api=api: kind if asked is api else None  # type: ignore[misc]
                    if kind in LYING:
                        with contextlib.suppress(ConsumerdError):
                            async with asyncio.timeout(60):
                                await ask(client)
                    else:
                        with pytest.raises(BrokerError) as caught:
                            async with asyncio.timeout(60):
                                await ask(client)
                        assert "\n" not in str(caught.value)
                    # The same client is well again as soon as the broker is.
                    broker.spoil = lambda _: None
                    if kind in BROKEN:
                        assert (await client.refresh([TOPIC])).leader(TOPIC, 1) is not None
        assert broker.spoiled >= (3 if slow else 45)


class Told:
    """A listener that records what fetching reports."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        assert isinstance(error, ConsumerdError)
        self.errors.append(error)

    def reset(self, *told: object) -> None:
        self.errors.append(AssertionError(told))

    log_changed = skipped = parked = reset


async def take(lane: Lane, found: list[bytes], until: int) -> None:
    while len(found) < until:
        got = await lane.get()
        found += [message.payload or b"" for message in got.messages()]
        lane.finished(got)


@pytest.mark.parametrize("seed", range(3))
async def test_fetcher_loses_no_message_to_invalid_responses(seed: int) -> None:
    rng = random.Random(seed)
    async with HostileKafka(rng) as broker, client_of(broker) as client:
        broker.log = {number: list(payloads) for number, payloads in SENT.items()}
        broker.spoil = sometimes(rng, BROKEN, of=tuple(VERSIONS))
        told = Told()
        settings = FetchSettings(max_wait=0.05, retry_backoff_min=0.01, retry_backoff_max=0.05)
        pool = FetchPool(V08Brokers(client, settings, CLOCK, rng, told))
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(0)
        found: defaultdict[int, list[bytes]] = defaultdict(list)
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                for place in PLACES:
                    lane = Lane(place, ByteBudget(1 << 20), max_bytes=1 << 20)
                    pool.add(place, 0, lane)
                    tasks.create_task(take(lane, found[place.partition], len(SENT[place.partition])))
        finally:
            await cancel(running)
        assert found == SENT
        assert not told.errors
        assert broker.spoiled > 5


@pytest.mark.parametrize("seed", range(3))
async def test_fetcher_survives_well_formed_false_responses(seed: int) -> None:
    rng = random.Random(seed)
    async with HostileKafka(rng) as broker, client_of(broker) as client:
        broker.log = {number: list(payloads) for number, payloads in SENT.items()}
        broker.spoil = sometimes(rng, BROKEN + LYING * 3)
        told = Told()
        settings = FetchSettings(max_wait=0.05, retry_backoff_min=0.01, retry_backoff_max=0.05)
        pool = FetchPool(V08Brokers(client, settings, CLOCK, rng, told))
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(0)
        lanes = {place: Lane(place, ByteBudget(1 << 20), max_bytes=1 << 20) for place in PLACES}
        found: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(take(lane, found[place], 1 << 30)) for place, lane in lanes.items()]
            for place, lane in lanes.items():
                pool.add(place, 0, lane)
            while broker.spoiled < 100:
                await asyncio.sleep(0.1)
                for place in PLACES:
                    pool.seek(place, 0)  # once more, also after a failure
            for reader in readers:
                reader.cancel()
        assert not running.done()
        # Checksums hold, but only of messages: an answer may give those of one partition as the other's.
        assert set().union(*found.values()) <= set().union(*SENT.values())
        # An honest broker is believed again, by whatever was not ended by a policy.
        broker.spoil = lambda _: None
        found.clear()
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                for place, lane in lanes.items():
                    pool.seek(place, 0)
                    tasks.create_task(take(lane, found[place], len(SENT[place.partition])))
        finally:
            await cancel(running)
        assert {place.partition: payloads for place, payloads in found.items()} == SENT


@pytest.mark.parametrize("listed", [(1 << 63) - 1, -5])
async def test_names_a_broker_that_reports_an_impossible_offset(listed: int) -> None:
    class AtTheEnd(HostileKafka):
        """Its log has one message, whose successor would have no offset."""

        def _offsets(self, body: dict[str, Any]) -> dict[str, Any]:
            return self._for_each(body["topics"], lambda _: {"error_code": 0, "offset": listed})

        async def _fetch(self, body: dict[str, Any]) -> dict[str, Any]:
            data = encode_record_batch([b"x"], base_offset=(1 << 63) - 1, timestamps=1000)
            return self._fetched(body, lambda _: {"error_code": 0, "high_watermark": (1 << 63) - 1, "records": data})

        _answers: ClassVar[Any] = HostileKafka._answers | {apis.LIST_OFFSETS.key: _offsets}

    rng = random.Random(1)
    async with AtTheEnd(rng) as broker, client_of(broker) as client:
        if listed < 0:
            pool = FetchPool(V08Brokers(client, FetchSettings(), CLOCK, rng, Told()))
            with pytest.raises(WireError, match=f"broker .* answered with offset {listed} of {PLACES[0]}"):
                await pool.list_offsets(PLACES[0], -1)
            return
        handler = Kept()
        async with asyncio.timeout(30):
            with pytest.raises(CorruptPartitionError, match=f"has offset {listed}, after which there is no") as caught:
                await member(client, handler, rng).run()
        assert caught.value.exit_code is ExitCode.CORRUPT
        assert not handler.found


class Kept(Handler):
    """Keeps the messages that it gets."""

    def __init__(self) -> None:
        self.found: defaultdict[int, dict[int, bytes]] = defaultdict(dict)

    async def handle(self, batch: Batch) -> None:
        for message in batch.messages():
            self.found[batch.partition.partition][message.offset] = message.payload or b""
        batch.mark(len(batch))


def member(client: ClusterClient, handler: Handler, rng: random.Random) -> CoordinatedConsumer:
    settings = ConsumerSettings(
        "g",
        "g_member",
        StaticSubscription({TOPIC: 1}),
        fetch=FetchSettings(max_wait=0.05, retry_backoff_min=0.01, retry_backoff_max=0.05),
        commit=CommitSection(interval=0.05),
        lease_margin=0.1,
    )
    coordination = CoordinationSettings(
        session_timeout=1.0, heartbeat_interval=0.05, rebalance_timeout=2.0, reconcile_interval=0.2,
        retry_interval=0.02, drain_timeout=0.5,
    )  # fmt: skip
    backend = ClusterBackend(client)
    return CoordinatedConsumer(settings, coordination, backend=backend, handler=handler, clock=CLOCK, rng=rng)


@pytest.mark.parametrize("seed", range(2))
async def test_member_loses_no_message_to_invalid_responses(seed: int) -> None:
    rng = random.Random(seed)
    async with HostileKafka(rng) as broker, client_of(broker) as client:
        broker.log = {number: list(payloads) for number, payloads in SENT.items()}
        broker.spoil = sometimes(
            rng, BROKEN, of=tuple(VERSIONS), share=0.2
        )  # each answer on the way into a group may cost seconds
        handler = Kept()
        consumer = member(client, handler, rng)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run())
            ends = {number: len(payloads) for number, payloads in SENT.items()}
            while broker.committed != ends or broker.spoiled < 8:  # heartbeats continue
                await asyncio.sleep(0.05)
                if broker.spoiled > 20:
                    broker.spoil = lambda _: None
            consumer.request_stop()
        expected = {number: dict(enumerate(payloads)) for number, payloads in SENT.items()}
        assert handler.found == expected


@pytest.mark.parametrize("seed", range(3))
async def test_member_goes_on_after_unknown_error_codes_and_answers_that_lack_something(seed: int) -> None:
    rng = random.Random(seed)
    async with HostileKafka(rng) as broker, client_of(broker) as client:
        handler = Kept()
        broker.spoil = sometimes(rng, LACKING, share=0.2)
        async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
            consumer = member(client, handler, rng)
            tasks.create_task(consumer.run())
            for n in range(60):  # while it is spoiled, and after it
                for number, payloads in SENT.items():
                    broker.log[number].append(payloads[n])
                await asyncio.sleep(0.02)
            while broker.spoiled < 40:
                await asyncio.sleep(0.05)
            broker.spoil = lambda _: None
            while broker.committed != {number: len(payloads) for number, payloads in SENT.items()}:
                await asyncio.sleep(0.05)
            consumer.request_stop()
        assert handler.found == {number: dict(enumerate(payloads)) for number, payloads in SENT.items()}


@pytest.mark.parametrize("seed", range(4))
async def test_member_reports_or_survives_well_formed_false_responses(seed: int) -> None:
    rng = random.Random(seed)
    async with HostileKafka(rng) as broker:
        broker.log = {number: list(payloads) for number, payloads in SENT.items()}
        broker.spoil = sometimes(rng, BROKEN + LYING * 3, share=0.2)
        async with client_of(broker) as client, asyncio.timeout(60):
            handler = Kept()
            consumer = member(client, handler, rng)
            running = asyncio.create_task(consumer.run())
            while broker.spoiled < 40 and not running.done():
                await asyncio.sleep(0.05)
            broker.spoil = lambda _: None
            consumer.request_stop()
            with contextlib.suppress(ConsumerdError):
                await running
        # Checksums hold, but only of messages: an answer may give those of one partition as the other's.
        everything = {payload for payloads in SENT.values() for payload in payloads}
        assert {payload for found in handler.found.values() for payload in found.values()} <= everything
        # Nothing is left of the lies: where what they made it commit is reset, a member of an honest broker gets all.
        broker.committed.clear()
        ends = {number: len(payloads) for number, payloads in SENT.items()}
        async with client_of(broker) as client, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            honest = Kept()
            consumer = member(client, honest, rng)
            tasks.create_task(consumer.run())
            while broker.committed != ends:
                await asyncio.sleep(0.05)
            consumer.request_stop()
        assert honest.found == {number: dict(enumerate(payloads)) for number, payloads in SENT.items()}


async def produce(
    broker: HostileKafka, settings: V08ProducerSettings, rng: random.Random
) -> tuple[dict[int, list[bytes]], list[ConsumerdError]]:
    """Send all messages with a producer of its own; returns what was confirmed of each partition, and the refusals."""
    confirmed: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    refused: list[ConsumerdError] = []
    async with client_of(broker) as client, V08Producer(client, settings, clock=CLOCK, rng=rng) as producer:
        deliveries = []
        for n in range(60):
            for number in range(PARTITIONS):
                try:
                    deliveries.append(
                        (number, SENT[number][n], await producer.send(TOPIC, SENT[number][n], partition=number))
                    )
                except ConsumerdError as error:  # by lies about the topic
                    refused.append(error)
        for number, payload, delivery in deliveries:
            try:
                await delivery
            except ConsumerdError as error:
                refused.append(error)
            else:
                confirmed[number].append(payload)
    return confirmed, refused


@pytest.mark.parametrize("kinds", [BROKEN, BROKEN + LYING * 3], ids=["broken", "lying"])
async def test_completes_every_delivery(kinds: tuple[str, ...]) -> None:
    rng = random.Random(5)
    async with HostileKafka(rng) as broker, asyncio.timeout(120):
        broker.spoil = sometimes(rng, kinds, of=(apis.PRODUCE, apis.INIT_PRODUCER_ID, apis.METADATA))
        settings = V08ProducerSettings(batch_bytes=100, linger=0.01, request_timeout=0.3, delivery_timeout=100)
        confirmed, refused = await produce(broker, settings, rng)
        assert broker.spoiled > 10
        # Batches that were sent again stand there twice: this broker does not know them again.
        stored = {number: list(dict.fromkeys(log)) for number, log in broker.log.items()}
        for number, payloads in SENT.items():
            assert confirmed[number]
            assert set(confirmed[number]) <= set(stored[number]) <= set(payloads)
        if kinds is BROKEN:
            assert not refused
            assert confirmed == stored == SENT
        # The next producer of the broker, once it is honest, stores all of it.
        broker.spoil = lambda _: None
        broker.log = {number: [] for number in range(PARTITIONS)}
        confirmed, refused = await produce(broker, settings, rng)
        assert not refused
        assert confirmed == broker.log == SENT


@pytest.mark.parametrize("kind", [None, *BROKEN, *LYING])
async def test_invalid_responses_never_authenticate(kind: str | None) -> None:
    def scram() -> Scram:
        return Scram("SCRAM-SHA-256", "alice", "x")

    async with HostileKafka(random.Random(kind)) as broker:
        for _ in range(1 if kind in ("endless", "silence") else 10):
            broker.spoil = lambda api: kind if api is apis.SASL_AUTHENTICATE else None
            async with client_of(broker, scram) as client:
                with pytest.raises(BrokerError) as caught:  # the server has to prove itself
                    await client.refresh()
                assert "\n" not in str(caught.value)
            if kind is None:
                continue
            broker.spoil = lambda api: kind if api in (apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE) else None
            async with client_of(broker, lambda: Plain("alice", "x")) as client:
                try:
                    await client.refresh()
                except BrokerError:
                    continue
                assert kind in LYING
