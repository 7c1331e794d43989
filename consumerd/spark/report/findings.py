"""What a reconciliation found, in words: one verdict, and what is to be told of each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.spark.report.wording import count, plural

if TYPE_CHECKING:
    from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult, Stretches

#: Kinds of stretches by their names in a check: how to tell them of a partition, and whether they are wrong.
_KINDS: Final = (
    ("gaps", "missing", True),
    ("unexpected", "not in the source", True),
    ("unrefined", "neither in silver nor in quarantine", True),
    ("surplus", "refined more than once", True),
    ("trimmed", "lost before they landed", True),
    ("declared", "declared gone", False),
    ("dropped", "no messages, and left out as the pipeline says", False),
    ("compacted", "compacted away in the source since", False),
    ("empty", "without messages in the log", False),
)


#: From this share of what was refined on, quarantine is part of the verdict.
MANY_QUARANTINED: Final = 0.1


class Finding(NamedTuple):
    """One thing to tell of a partition."""

    text: str
    bad: bool


class Verdict(NamedTuple):
    """The whole in one sentence. `bad`: None where nobody can say, or somebody should look."""

    text: str
    bad: bool | None


def findings(check: PartitionCheck) -> list[Finding]:
    """What is to be told of a partition, the worst first; nothing where all is as it should be."""
    found = [Finding(_stretches(getattr(check, name), words), bad) for name, words, bad in _KINDS]
    found += [Finding(f"declared: {reason}", bad=False) for reason in check.reasons]
    if check.duplicates:
        found.append(Finding(plural(check.duplicates, "duplicate"), bad=True))
    if check.same_hash is False:
        found.append(Finding("content differs from the source's", bad=True))
    if check.pending:
        found.append(Finding(f"{plural(check.pending, 'row')} not refined yet", bad=False))
    return sorted((one for one in found if one.text), key=lambda one: not one.bad)


def verdict(result: ReconcileResult | None) -> Verdict:
    """What the head of the page says."""
    if result is None:
        return Verdict("Not reconciled: this page does not tell whether everything landed.", None)
    if not result.partitions:
        return Verdict("Nothing was to be landed yet.", None)
    if result.is_clean:
        how = "offset by offset" if result.shallow else "message by message"
        partitions = plural(len(result.partitions), "partition")
        but = f", but for {plural(result.declared, 'stretch', 'stretches')} declared gone" if result.declared else ""
        text = f"Everything that was to land has landed, once{but}: {partitions}, compared {how}."
        refined = result.rows_refined + result.rows_quarantined
        if refined and result.rows_quarantined / refined >= MANY_QUARANTINED:
            share = f"{result.rows_quarantined / refined:.0%}"
            return Verdict(f"{text} But {share} of what was refined is in quarantine, for the reasons below.", None)
        return Verdict(text, bad=False)
    told = [
        plural(result.gaps, "gap"),
        plural(result.duplicates, "duplicate"),
        *(
            f"{plural(number, 'stretch', 'stretches')} {words}"
            for name, words, bad in _KINDS
            if bad and name != "gaps" and (number := sum(getattr(one, name).count for one in result.partitions))
        ),
    ]
    if altered := sum(one.same_hash is False for one in result.partitions):
        told.append(f"{plural(altered, 'partition')} with content that differs from the source's")
    dirty = sum(not one.is_clean for one in result.partitions)
    where = f"{count(dirty)} of {plural(len(result.partitions), 'partition')}"
    return Verdict(f"{', '.join(told[:-1])} and {told[-1]}, in {where}; they are named below.", bad=True)


def _stretches(stretches: Stretches, words: str) -> str:
    if not stretches.count:
        return ""
    shown = ", ".join(map(str, stretches.first))
    more = stretches.count - len(stretches.first)
    return f"{words}: {shown}" + (f" and {count(more)} more" if more else "")
