"""The figures of one run, told as they come, and the promises that they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from benchmarks.race import Measurement


class Figures:
    """Rows of the case `case`. `echo` is called with each; `broken` holds a sentence for each broken promise."""

    def __init__(self, case: str, echo: Callable[[Measurement], None], *, details: bool = False) -> None:
        self.case = case
        self._details = details
        self.broken: list[str] = []
        self._echo = echo

    def add(self, subject: str, value: float, unit: str, limit: float | None = None) -> None:
        """One figure. A promise is broken by one above `limit`."""
        self._echo(Measurement("group", self.case, subject, round(value, 3), unit))
        if limit is not None and value > limit:
            self.fail(f"{subject} {value:g} {unit}".rstrip() + f", and at most {limit:g} is promised")

    def spread(
        self, subject: str, counts: Counter[str], unit: str, limit: float | None = None, *, detail: bool = False
    ) -> None:
        """A total, and the parts that it is made of; those of a mere `detail` only with `details`."""
        self.add(subject, counts.total(), unit, limit)
        if detail and not self._details:
            return
        for name, count in sorted(counts.items()):
            self.add(f"{subject}, {name}", count, unit)

    def fail(self, sentence: str) -> None:
        """Note a broken promise."""
        self.broken.append(f"{self.case}: {sentence}")
