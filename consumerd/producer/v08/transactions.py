"""The transactions of a producer: its state, and the requests to coordinators of its transactional id and of groups.

Strategy: `TransactionState` is pure: it follows the table of `transaction_tables`, whose theory says why, and has what
the transaction has touched, and whether a request is necessary to end it. `Transactions` sends what follows from it,
again while errors are transient, and notes in it what each answer means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypedDict

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import GROUP, TRANSACTION, ClusterClient
from consumerd.net.client.errors import BrokerRefusedError, error_of
from consumerd.net.client.retrying import passes
from consumerd.producer.errors import ProducerFencedError, TransactionAbortedError, TransactionUncertainError
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.transaction_tables import (
    TRANSACTION_PHASES,
    TransactionCause,
    TransactionPhase,
    Verdict,
    verdict_of,
    verdict_of_batch,
)
from consumerd.wire.v08.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.schema import Api, RequestT, ResponseT

if TYPE_CHECKING:
    from consumerd.base.ports import Clock
    from consumerd.wire.v08 import message_types as bodies

log = structlog.get_logger(__name__)

#: The feature of a cluster, and its level from which on brokers add partitions and groups themselves (KIP-890).
_FEATURE: Final = "transaction.version"
_IMPLICIT: Final = 2
#: The first versions of requests with which a producer takes part in version 2, which tell brokers that it does.
_PRODUCE_SINCE: Final = 12
_END_SINCE: Final = 5
_OFFSETS_SINCE: Final = 5
#: The first version of TXN_OFFSET_COMMIT that names the member, of INIT_PRODUCER_ID that names the former epoch.
_MEMBER_SINCE: Final = 3
_EPOCH_SINCE: Final = 3
#: Seconds between requests while the coordinator still writes the end of the transaction before: it takes milliseconds.
_SHORT_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR_FOR_GROUP, ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE})
#: Failures that a repeated request may not have: the coordinator is asked again.
_AGAIN: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})


@dataclass(slots=True)
class ProducerIdentity:
    """The producer id and epoch of partitions' messages."""

    producer_id: int
    epoch: int


class CommittingMember(Protocol):
    """The member of a group for which offsets are committed: its generation is checked by the coordinator (KIP-447)."""

    @property
    def generation(self) -> int:
        """The group's generation, or the member's epoch."""
        ...

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave."""
        ...

    @property
    def instance_id(self) -> str | None:
        """The group.instance.id of a static member."""
        ...


class _Producer(TypedDict):
    """The fields of requests that name the producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionOffset(NamedTuple):
    """An offset to commit: that of the next message, the leader epoch of the last one, and a text to keep with it."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(slots=True)
class TransactionState:
    """The state of a transactional producer. Pure; not reentrant."""

    transactional_id: str
    phase: TransactionPhase = TransactionPhase.NEW
    #: None before the first, and where the coordinator has forgotten it.
    identity: ProducerIdentity | None = None
    #: The version of the protocol, 1 or 2.
    version: int = 1
    #: What the coordinator has accepted as part of the transaction.
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    #: The coordinator may know of the transaction: it has to be ended.
    touched: bool = False
    #: A batch failed: the sequence numbers have a gap.
    gap: bool = False
    #: Why the transaction can only be aborted, or nothing more can be sent.
    error: Exception | None = None

    def _follow(self, cause: TransactionCause) -> None:
        after = TRANSACTION_PHASES.get((self.phase, cause))
        if after is None:
            raise RuntimeError(f"no transition of a transaction from {self.phase} by {cause}")
        self.phase = after

    @property
    def open(self) -> bool:
        """Whether messages and offsets can be sent."""
        return self.phase is TransactionPhase.OPEN

    def refusal(self) -> BrokerError:
        """Why nothing can be sent now; its cause is the first error."""
        error: BrokerError
        if self.phase is TransactionPhase.FENCED:
            error = ProducerFencedError(f"transactional id {self.transactional_id!r} cannot be used: {self._why}")
        else:
            error = TransactionAbortedError(f"the transaction of {self.transactional_id!r} is aborted: {self._why}")
        error.__cause__ = self.error
        return error

    @property
    def _why(self) -> str:
        return "its block ended with an error" if self.error is None else reason_of(self.error)

    def initialised(self, identity: ProducerIdentity, version: int) -> None:
        """InitProducerId was answered."""
        self._follow(TransactionCause.INITIALISED)
        self.identity, self.version, self.gap, self.error = identity, version, False, None

    def begin(self) -> None:
        """The next transaction begins."""
        self._follow(TransactionCause.BEGIN)
        self.partitions.clear()
        self.groups.clear()
        self.touched, self.error = False, None

    def missing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that have to be named to the coordinator before anything is written to them."""
        self.touched = True
        return set() if self.version >= _IMPLICIT else set(partitions) - self.partitions

    def fail(self, error: Exception, verdict: Verdict, *, gap: bool = False) -> None:
        """Something of the transaction failed. Errors after the first one, or outside of a transaction, add nothing."""
        self.gap |= gap
        if verdict is Verdict.FENCE:
            if self.phase is not TransactionPhase.FENCED:
                self.error = error
            self._follow(TransactionCause.FENCE)
        elif (self.phase, TransactionCause.FAIL) in TRANSACTION_PHASES:
            self._follow(TransactionCause.FAIL)
            self.error = self.error or error
        if verdict is Verdict.RENEW:
            self.identity = None

    def ending(self, *, commit: bool) -> None:
        """The transaction is about to end: nothing more becomes part of it."""
        self._follow(TransactionCause.COMMIT if commit else TransactionCause.ABORT)

    def ended(self, identity: ProducerIdentity | None) -> None:
        """EndTxn was answered, or not necessary. `identity`: that of the next transaction, if it is another one."""
        if identity is not None:
            self.identity, self.gap = identity, False
        self._follow(TransactionCause.UNSURE if self.gap else TransactionCause.ENDED)

    def unsure(self) -> None:
        """The end of the transaction is unknown, or cannot be had by EndTxn."""
        self._follow(TransactionCause.UNSURE)


class Transactions:
    """Sends the requests of a transactional producer. `state` says what may be sent. One caller at a time for `begin`,
    `end` and `initialise`; the others may run side by side.
    """

    def __init__(self, client: ClusterClient, settings: V08ProducerSettings, clock: Clock) -> None:
        assert settings.transactional_id is not None  # the caller made it for a transactional producer
        #: The id under which the coordinator knows the producer.
        self.transactional_id = settings.transactional_id
        self.state = TransactionState(self.transactional_id)
        self._client = client
        self._settings = settings
        self._clock = clock

    @property
    def abortable(self) -> bool:
        """Whether a transaction is under way that can be aborted."""
        return self.state.phase in (TransactionPhase.OPEN, TransactionPhase.FAILED)

    @property
    def fenced(self) -> bool:
        """Whether the producer can send nothing any more."""
        return self.state.phase is TransactionPhase.FENCED

    # -- for the requests with messages

    @property
    def produce_versions(self) -> tuple[int, int | None]:
        """The least and the highest version of PRODUCE: they tell a broker which protocol the producer follows."""
        return (_PRODUCE_SINCE, None) if self.state.version >= _IMPLICIT else (0, _PRODUCE_SINCE - 1)

    def ready_for(self, partition: TopicPartition) -> bool:
        """Whether messages can be sent to a partition at once."""
        return self.state.open and not self.state.missing((partition,))

    async def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction. One attempt.

        Raises ProducerFencedError or TransactionAbortedError where nothing can be sent, BrokerError for what passes.
        """
        state = self.state
        if not state.open:
            raise state.refusal()
        missing = state.missing(partitions)
        if not missing:
            return
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for partition in missing:
            by_topic[partition.topic].append(partition.partition)
        body: bodies.AddPartitionsToTxnRequest = {
            **self._producer(),
            "topics": [{"name": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
        }
        what = f"cannot add partitions to the transaction of {self.transactional_id!r}"

        async def attempt() -> int:
            answer = await self._call(ADD_PARTITIONS_TO_TXN, body)
            codes = [
                part["partition_error_code"]
                for topic in answer["results_by_topic"]
                for part in topic["results_by_partition"]
            ]
            # Where one is refused, the others have OPERATION_NOT_ATTEMPTED.
            refused = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
            return next(iter(refused or codes), 0)

        self._judge(await self._until_written(attempt), what)
        state.partitions |= missing

    def failed(self, error: BrokerError) -> None:
        """A batch failed for good."""
        code = error.code if isinstance(error, BrokerRefusedError) else 0
        self.state.fail(error, verdict_of_batch(code) if code else Verdict.ABORT, gap=True)

    # -- life of a transaction

    async def initialise(self) -> None:
        """Have the coordinator end what is open of the transactional id, and get an epoch above all former ones.

        Raises ProducerFencedError, BrokerError.
        """
        state = self.state
        if state.phase is TransactionPhase.FENCED:
            raise state.refusal()
        what = f"cannot begin transactions of {self.transactional_id!r}"

        async def attempt() -> None:
            channel = await self._client.coordinator_channel(self.transactional_id, TRANSACTION)
            version = channel.versions.pick(INIT_PRODUCER_ID)
            body: bodies.InitProducerIdRequest = {
                "transactional_id": self.transactional_id,
                "transaction_timeout_ms": int(self._settings.transaction_timeout * 1000),
            }
            if state.identity is not None and version >= _EPOCH_SINCE:
                body["producer_id"], body["producer_epoch"] = state.identity.producer_id, state.identity.epoch

            answer = await self._call(INIT_PRODUCER_ID, body, version=version)
            self._judge(answer["error_code"], what)
            level = channel.versions.features.get(_FEATURE, 0)
            identity = ProducerIdentity(answer["producer_id"], answer["producer_epoch"])
            state.initialised(identity, _IMPLICIT if level >= _IMPLICIT else 1)

        await self._retrying(what, attempt)

    async def begin(self) -> None:
        """Begin a transaction; every message of the one before must be settled. Raises as `initialise`."""
        if self.state.phase in (TransactionPhase.NEW, TransactionPhase.FENCED):
            await self.initialise()
        self.state.begin()

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, TransactionOffset], member: CommittingMember | None
    ) -> None:
        """Make offsets of a group part of the transaction. `member`: for which they are, None for a group without any.

        Raises TransactionAbortedError if they are refused, ProducerFencedError, BrokerError.
        """
        state = self.state
        if not state.open:
            raise state.refusal()
        state.touched = True
        try:
            if state.version < _IMPLICIT and group not in state.groups:
                await self._add_group(group)
            await self._commit_offsets(group, offsets, member)
        except (ProducerFencedError, TransactionAbortedError):
            raise
        except BrokerError as error:
            state.fail(error, Verdict.ABORT)
            raise

    async def _add_group(self, group: str) -> None:
        body: bodies.AddOffsetsToTxnRequest = {**self._producer(), "group_id": group}
        what = f"cannot add group {group!r} to the transaction of {self.transactional_id!r}"

        async def add() -> int:
            return (await self._call(ADD_OFFSETS_TO_TXN, body))["error_code"]

        async def attempt() -> None:
            self._judge(await self._until_written(add), what)

        await self._retrying(what, attempt)
        self.state.groups.add(group)

    async def _commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, TransactionOffset], member: CommittingMember | None
    ) -> None:
        what = f"cannot commit offsets of group {group!r} in the transaction of {self.transactional_id!r}"
        by_topic: defaultdict[str, list[bodies.TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for partition, place in offsets.items():
            by_topic[partition.topic].append(
                {
                    "partition_index": partition.partition,
                    "committed_offset": place.offset,
                    "committed_leader_epoch": -1 if place.leader_epoch is None else place.leader_epoch,
                    "committed_metadata": place.metadata,
                }
            )
        implicit = self.state.version >= _IMPLICIT

        async def attempt() -> None:
            channel = await self._client.coordinator_channel(group)
            version = channel.versions.pick(
                TXN_OFFSET_COMMIT,
                at_least=_OFFSETS_SINCE if implicit else 0,
                at_most=None if implicit else _OFFSETS_SINCE - 1,
            )
            producer = self._producer()
            body: bodies.TxnOffsetCommitRequest = {
                "transactional_id": producer["transactional_id"],
                "producer_id": producer["producer_id"],
                "producer_epoch": producer["producer_epoch"],
                "group_id": group,
                "topics": [{"name": topic, "partitions": parts} for topic, parts in by_topic.items()],
            }
            if member is not None and version >= _MEMBER_SINCE:
                body["generation_id"], body["member_id"] = member.generation, member.member_id
                body["group_instance_id"] = member.instance_id

            async def commit() -> int:
                answer = await self._client.call_coordinator(group, TXN_OFFSET_COMMIT, body, version=version)
                codes = [part["error_code"] for topic in answer["topics"] for part in topic["partitions"]]
                return next(filter(None, codes), 0)

            self._judge(await self._until_written(commit), what, group=group)

        await self._retrying(what, attempt)

    async def end(self, *, commit: bool, settled: Callable[[], Awaitable[object]]) -> None:
        """Commit or abort. `settled` returns when every message is settled, or fails those that were not sent.

        Raises TransactionAbortedError for a commit that is refused, or of which a part failed (abort it then),
        ProducerFencedError, and TransactionUncertainError where the answer is unknown.
        """
        state = self.state
        if commit:
            await settled()
            if not state.open:
                raise state.refusal()
        what = f"cannot {'commit' if commit else 'abort'} the transaction of {self.transactional_id!r}"
        state.ending(commit=commit)
        try:
            if not commit:
                await settled()
            if state.identity is None:
                state.unsure()
            elif not state.touched:
                state.ended(None)
            else:
                await self._retrying(what, lambda: self._end(what, commit=commit))
        except (ProducerFencedError, TransactionAbortedError) as error:
            if state.phase is not TransactionPhase.ABORTING:
                raise
            state.unsure()
            log.warning("transaction_abort_refused", transactional_id=self.transactional_id, reason=reason_of(error))
        except BrokerError as error:
            state.unsure()
            raise TransactionUncertainError(
                f"{what}: {reason_of(error)}; the coordinator ends it when the transactional id is used again, or "
                "after the transaction timeout"
            ) from error
        except BaseException:
            state.unsure()
            raise

    async def _end(self, what: str, *, commit: bool) -> None:
        implicit = self.state.version >= _IMPLICIT
        body: bodies.EndTxnRequest = {**self._producer(), "committed": commit}
        channel = await self._client.coordinator_channel(self.transactional_id, TRANSACTION)
        version = channel.versions.pick(
            END_TXN, at_least=_END_SINCE if implicit else 0, at_most=None if implicit else _END_SINCE - 1
        )
        found: list[ProducerIdentity] = []

        async def attempt() -> int:
            answer = await self._call(END_TXN, body, version=version)
            if not answer["error_code"] and answer.get("producer_id", -1) >= 0:
                found.append(ProducerIdentity(answer["producer_id"], answer["producer_epoch"]))
            return answer["error_code"]

        self._judge(await self._until_written(attempt), what)
        self.state.ended(found[-1] if found else None)

    # -- requests

    def _producer(self) -> _Producer:
        identity = self.state.identity
        if identity is None:
            raise self.state.refusal()
        return {
            "transactional_id": self.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }

    async def _call(self, api: Api[RequestT, ResponseT], body: RequestT, *, version: int | None = None) -> ResponseT:
        """Send a request to the coordinator of the transactional id. One attempt."""
        options = {} if version is None else {"version": version}
        return await self._client.call_coordinator(self.transactional_id, api, body, kind=TRANSACTION, **options)

    async def _until_written(self, attempt: Callable[[], Awaitable[int]]) -> int:
        """The error code of a request, which waits until the end of the transaction before is written."""
        pause, until = _SHORT_PAUSE, self._clock.monotonic() + self._settings.transaction_timeout
        while True:
            code = await attempt()
            if code not in _AGAIN or self._clock.monotonic() > until:
                return code
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _retrying(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        await self._client.retrying(what, attempt, timeout=self._settings.delivery_timeout, passes=_passes)

    def _judge(self, code: int, what: str, *, group: str | None = None) -> None:
        """Raise the error of an answer, if it has one, once the state knows what it means."""
        error = error_of(code, what)
        if error is None:
            return
        if code in _MOVED:
            name, kind = (self.transactional_id, TRANSACTION) if group is None else (group, GROUP)
            self._client.forget_coordinator(name, kind)
        verdict = verdict_of(code)
        if verdict is not Verdict.RETRY:
            self.state.fail(error, verdict)
        if verdict is Verdict.RETRY or (self.state.phase is TransactionPhase.NEW and verdict is not Verdict.FENCE):
            raise error
        if verdict is Verdict.FENCE:
            raise ProducerFencedError(str(error)) from error
        raise TransactionAbortedError(str(error)) from error


def _passes(error: BrokerError) -> bool:
    """Whether the request is sent again: errors that the state knows of are final."""
    if isinstance(error, BrokerRefusedError):
        return verdict_of(error.code) in (Verdict.RETRY, Verdict.RENEW)
    return passes(error)
