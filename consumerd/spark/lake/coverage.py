"""Coverage of each position of a log by the plan, the source, bronze, silver and quarantine.

Strategy: a sweep line. Every run adds 1 where it begins and subtracts 1 where it ends; runs that follow each other
cancel out, whichever task read them and in any order, so of an intact partition only its two ends remain. So the cost
is that of reading, and errors show as stretches with an unexpected depth.

Each kind of stretch is a condition on how often the layers cover it. Adjacent stretches of one kind are merged, so that
a gap counts once even if others begin or end within it; all are counted, and the first ones are returned.

The conditions are written so that they apply to columns of Spark (`consumerd.spark.coverage`) and of Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.reconcile_result import LISTED, PARTITION, LogStretch, LogStretches

if TYPE_CHECKING:
    from consumerd.spark.source.offsets import Key

#: The ranges to be landed; those of the source that were read again; its messages; bytes there that are not a message,
#: where they are left out; bronze; the part of it that `refine` should have handled; silver and quarantine; ranges that
#: an earlier comparison has proven, and that still hold; ranges declared gone.
LAYERS: Final = ("planned", "available", "source", "malformed", "bronze", "due", "refined", "proven", "declared")
_POINT: Final = (*PARTITION, "offset", "index")
_START: Final = ("start_offset", "start_index")
_END: Final = ("end_offset", "end_index")


def kinds(
    depth: Mapping[str, Any], *, lossless: bool, dedup: bool, refined: bool, compacts: bool = False
) -> dict[str, Any]:
    """Conditions on the depths of LAYERS, by the name of the kind in `PartitionCheck`; of others there is none.

    `depth`: columns. `lossless`: messages that the source no longer had were not to be left out, so such a range is a
    gap; else it is reported as trimmed, which is an error, too, unless it was declared. `dedup`: silver has each
    identity once; `refined`: there is a silver or a quarantine; `compacts`: the log may lose messages in its middle,
    and has offsets that no message ever had, so that it is unknown whether an offset that it lacks ever had a message
    to be landed.
    """
    planned, readable, there, malformed, bronze, due, parsed, proven, declared = (depth[name] for name in LAYERS)
    absent = (planned > 0) & (bronze == 0)
    vanished = absent & (readable == 0) & (there == 0)
    gone = vanished & (proven == 0) & (declared == 0)
    beyond = (bronze > 0) & (planned == 0)
    alone = (bronze > 0) & (readable > 0) & (there == 0) & (malformed == 0)
    found = {
        "gaps": absent & (there > 0),
        # Where nothing is to be read any more, an earlier comparison has shown that there was no message.
        "empty": absent & (there == 0) & (malformed == 0) & ((readable > 0) | ((proven > 0) & (declared == 0))),
        "dropped": absent & (there == 0) & (malformed > 0),
        "declared": vanished & (declared > 0),
        "unexpected": beyond,
        "duplicated": (bronze > there) & (bronze > 1),
    }
    if lossless and not compacts:
        found["gaps"] |= gone
    else:
        found["trimmed"] = gone
    if compacts:
        found["compacted"] = alone & (planned > 0)
    else:
        found["unexpected"] |= alone
    if refined:
        more = parsed > bronze
        found["unrefined"] = (due > 0) & (parsed == 0)
        found["surplus"] = more | ((bronze > 0) & (parsed > 1)) if dedup else more
    return found


def sweep(layers: Mapping[str, pa.Table]) -> pa.Table:
    """Each partition's log cut where any depth changes, in order: columns PARTITION, `offset`, `index`, and LAYERS.

    `layers`: runs (`consumerd.spark.runs`) by the name of the layer; the depth of those that are left out is 0. A
    stretch ends where the next one of its partition begins; at the last one of a partition nothing is covered.
    """
    points = pa.concat_tables(
        _points(name, side, change, runs)
        for name, runs in layers.items()
        for side, change in (("start", 1), ("end", -1))
    )
    changes = points.group_by(list(_POINT), use_threads=False).aggregate([(name, "sum") for name in LAYERS])
    changes = changes.select([*_POINT, *(f"{name}_sum" for name in LAYERS)]).rename_columns([*_POINT, *LAYERS])
    changed = reduce(or_, (pc.field(name) != 0 for name in LAYERS))
    changes = changes.filter(changed).sort_by([(name, "ascending") for name in _POINT])
    # The changes of a partition add up to 0, so the sums need not begin again with each.
    depths = {name: pc.cumulative_sum(changes[name]) for name in LAYERS}
    return pa.table({name: changes[name] for name in _POINT} | depths)


def found_stretches(swept: pa.Table, **conditions: bool) -> dict[Key, dict[str, LogStretches]]:
    """The stretches of `sweep` by partition and kind; kinds without one are left out. `conditions`: as for `kinds`."""
    places = swept.slice(0, max(0, swept.num_rows - 1)).rename_columns([*PARTITION, *_START, *LAYERS])
    for name, end in zip(("offset", "index"), _END, strict=True):
        places = places.append_column(end, swept[name].slice(1))
    found: dict[Key, dict[str, LogStretches]] = {}
    for kind, condition in kinds({name: pc.field(name) for name in LAYERS}, **conditions).items():
        for key, stretches in merged_stretches(places.filter(condition)).items():
            found.setdefault(key, {})[kind] = stretches
    return found


def merged_stretches(places: pa.Table) -> dict[Key, LogStretches]:
    """Places in order, of which neighbours become one stretch. Columns PARTITION, `start_*` and `end_*`."""
    count = places.num_rows
    if not count:
        return {}
    before, after = places.slice(0, count - 1), places.slice(1)
    pairs = [*((name, name) for name in PARTITION), *zip(_END, _START, strict=True)]
    parted = reduce(pc.or_, (pc.not_equal(before[one], after[other]) for one, other in pairs))
    parted = pa.concat_arrays(parted.chunks) if parted.num_chunks else pa.array([], pa.bool_())
    edge = pa.array([True])
    begins = places.filter(pa.concat_arrays([edge, parted])).select([*PARTITION, *_START])
    ends = places.filter(pa.concat_arrays([parted, edge])).select([*_END])
    numbered = begins.append_column("number", pa.array(range(begins.num_rows), pa.int64()))
    counts = numbered.group_by([*PARTITION], use_threads=False).aggregate([("number", "min"), ("number", "count")])
    found = {}
    for row in counts.to_pylist():
        first, number = row["number_min"], row["number_count"]
        listed = min(number, LISTED)
        pairs_listed = zip(begins.slice(first, listed).to_pylist(), ends.slice(first, listed).to_pylist(), strict=True)
        stretches = [
            LogStretch(start["start_offset"], end["end_offset"], start["start_index"], end["end_index"])
            for start, end in pairs_listed
        ]
        (last,) = ends.slice(first + number - 1, 1).to_pylist()
        found[row["topic"], row["broker_partition"]] = LogStretches(number, tuple(stretches), *last.values())
    return found


def _points(name: str, side: str, change: int, runs: pa.Table) -> pa.Table:
    """Points where runs begin or end, as changes of the layer's depth and of no other's."""
    none, one = pa.scalar(0, pa.int64()), pa.scalar(change, pa.int64())
    columns = {each: runs[each] for each in PARTITION}
    columns |= {"offset": runs[f"{side}_offset"], "index": runs[f"{side}_index"]}
    return pa.table(columns | {each: pa.repeat(one if each == name else none, runs.num_rows) for each in LAYERS})
