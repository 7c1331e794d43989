"""A run as one JSON object: what is printed, kept, and drawn, also later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.soak.plot import Panel, draw

#: Seconds between samples, and parts of the run for which messages are counted, about.
_SAMPLE: Final = 5.0
_PARTS: Final = 90


def as_table(record: Mapping[str, Any]) -> str:
    """Names and figures in lines, processes in a table of their own; the broken promises follow."""
    left_out = {"violations", "lives", "faults_at", "growth"}
    figures = {name.replace("_", " "): value for name, value in record.items() if name not in left_out}
    rows: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            rows[name] = ", ".join(f"{key.replace('_', ' ')} {each}" for key, each in value.items())
        else:
            rows[name] = value
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    for each in record["growth"]:
        memory = f"{each['memory_before']} -> {each['memory_after']} MiB, peak {each['peak']}"
        grown = f"{each['memory_growth']} MiB, {each['descriptor_growth']} descriptors, {each['task_growth']} tasks"
        lines.append(f"{each['name']}: {each['seconds']} s, {memory}, grew {grown}")
    return "\n".join([*lines, *(f"VIOLATION {text}" for text in record["violations"])])


def picture(record: Mapping[str, Any]) -> str:
    """The SVG of a run."""

    def pieces(key: str) -> dict[str, list[list[tuple[float, float]]]]:
        found: dict[str, list[list[tuple[float, float]]]] = {}
        for life in record["lives"]:
            line = [
                (at / 60, value)
                for at, value in zip(life["at"], life[key], strict=True)
                if value is not None and at <= record["seconds"]  # sampling goes on until all is committed
            ]
            if line:
                found.setdefault(_label(life["name"], record["stays"]), []).append(line)
        return dict(sorted(found.items()))

    panels = [
        Panel("resident memory, MiB", pieces("resident"), record["memory_limit"]),
        Panel("open file descriptors", pieces("descriptors")),
        Panel("asyncio tasks", pieces("tasks")),
        Panel("messages per second, in thousands", {record["rated"]: [rates(record["lives"], record["seconds"])]}),
    ]
    minutes = record["seconds"] / 60
    return draw(record["title"], minutes, panels, [at / 60 for at in record["faults_at"]])


def _label(name: str, stays: str) -> str:
    if name == stays:
        return "member that stays"
    return "other members" if name.startswith("member") else name


def rates(lives: Sequence[Mapping[str, Any]], seconds: float) -> list[tuple[float, float]]:
    """Thousands of messages per second that all members handled, by the minutes of the middles of equal parts."""
    width = _SAMPLE * max(2, round(seconds / _PARTS / _SAMPLE))  # whole samples, so that parts are alike
    handled: defaultdict[int, float] = defaultdict(float)
    for life in lives:
        last = None
        for at, now in zip(life["at"], life["handled"], strict=True):
            if now is not None:
                if last is not None:
                    handled[int((at - _SAMPLE / 2) / width)] += now - last
                last = now
    return [((part + 0.5) * width / 60, handled[part] / width / 1000) for part in range(int(seconds / width))]
