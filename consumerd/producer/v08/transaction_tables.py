"""The phases of a transactional producer, every transition between them, and what each error of a broker means.

Strategy: two tables, looked up and never bypassed; a transition that is not in the first is a defect and raises. What
is sent in a phase is in `consumerd.producer.v08.transactions`.

# Theory of operation

A transactional id belongs to one producer at a time. InitProducerId gives it a producer id and an epoch, which is
higher than that of any producer before; the coordinator of the id ends what a former one left open, and brokers refuse
everything from a lower epoch. The messages and offsets of a transaction count once the coordinator has written that it
is committed: from then on nothing can abort it.

There are two versions of the protocol. In version 1 a producer names each partition and group to the coordinator before
it writes there, and keeps its epoch. In version 2 (KIP-890; the cluster's feature `transaction.version`) brokers name
them, and each transaction ends with a higher epoch, so that a request that is late can never be part of the next one.

These are the rules:

1. Messages are sent in OPEN only. A transaction begins when every batch of the one before is settled, so none of them
   is sent in a later transaction.
2. COMMITTING begins when every batch was acknowledged and all offsets were accepted. After any error the phase is
   FAILED, and the transaction can only be aborted.
3. EndTxn is sent again until it is answered: it is idempotent within an epoch. One whose answer is unknown leads to
   NEW: nothing may be sent before InitProducerId, which has the coordinator complete a transaction that was about to
   be committed and abort any other.
4. A batch that failed leaves a gap in the sequence numbers. In version 1 InitProducerId, too, follows the abort, with
   the former id and epoch: the coordinator refuses it if another producer has the transactional id by now (KIP-360).
5. FENCED is final: another producer has the transactional id, or it may not be used. Nothing is sent any more.

Why nothing is there twice: what a failed transaction wrote is aborted before anything of it is sent again (rules 2 and
3), and a producer that was thought dead is fenced by the next one's epoch, by its member's generation where offsets are
committed for a member (KIP-447), or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from consumerd.wire.v08.error_codes import ErrorCode, error_info


class TransactionPhase(Enum):
    """The phase of a transactional producer."""

    #: InitProducerId comes next.
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    #: It can only be aborted.
    FAILED = "failed"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"


class TransactionCause(Enum):
    """The cause of a transition."""

    INITIALISED = "initialised"
    BEGIN = "begin"
    FAIL = "fail"
    COMMIT = "commit"
    ABORT = "abort"
    ENDED = "ended"
    #: What the coordinator holds is unknown, or the sequence numbers have a gap.
    UNSURE = "unsure"
    FENCE = "fence"


_P: Final = TransactionPhase
_C: Final = TransactionCause
TRANSACTION_PHASES: Final[Mapping[tuple[TransactionPhase, TransactionCause], TransactionPhase]] = {
    (_P.NEW, _C.INITIALISED): _P.READY,
    (_P.READY, _C.INITIALISED): _P.READY,
    (_P.READY, _C.BEGIN): _P.OPEN,
    (_P.OPEN, _C.FAIL): _P.FAILED,
    (_P.FAILED, _C.FAIL): _P.FAILED,
    (_P.COMMITTING, _C.FAIL): _P.FAILED,
    (_P.OPEN, _C.COMMIT): _P.COMMITTING,
    (_P.OPEN, _C.ABORT): _P.ABORTING,
    (_P.FAILED, _C.ABORT): _P.ABORTING,
    (_P.COMMITTING, _C.ENDED): _P.READY,
    (_P.ABORTING, _C.ENDED): _P.READY,
    (_P.COMMITTING, _C.UNSURE): _P.NEW,
    (_P.ABORTING, _C.UNSURE): _P.NEW,
    **{(phase, _C.FENCE): _P.FENCED for phase in _P},
}


class Verdict(Enum):
    """What an error of a broker means for a transaction."""

    #: The request is sent again.
    RETRY = "retry"
    ABORT = "abort"
    #: The coordinator has forgotten the transactional id, unused for long: the producer begins as a new one.
    RENEW = "renew"
    FENCE = "fence"


_VERDICTS: Final[Mapping[int, Verdict]] = {
    ErrorCode.PRODUCER_FENCED: Verdict.FENCE,
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.FENCE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FENCE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Verdict.FENCE,
    ErrorCode.UNSUPPORTED_VERSION: Verdict.FENCE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Verdict.FENCE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.RENEW,
    #: A broker that shuts down may return it.
    ErrorCode.UNKNOWN: Verdict.RETRY,
}


def verdict_of(code: int) -> Verdict:
    """What an error of the coordinators means. Every other code than those of the table aborts, or passes."""
    if code in _VERDICTS:
        return _VERDICTS[code]
    return Verdict.RETRY if error_info(code).retriable else Verdict.ABORT


def verdict_of_batch(code: int) -> Verdict:
    """What an error of a batch means. Of the epoch the coordinator knows more, which the abort asks."""
    return Verdict.ABORT if code == ErrorCode.INVALID_PRODUCER_EPOCH else verdict_of(code)
