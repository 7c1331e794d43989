"""The base of all tables of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt, Le, Lt
from pydantic import AllowInfNan, BaseModel, ConfigDict, model_validator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

#: Thirty years: TOML has an infinity, which neither timers nor requests have.
Seconds = Annotated[float, AllowInfNan(False), Gt(0), Le(1_000_000_000)]
#: What goes to brokers as milliseconds of 32 bits.
WireSeconds = Annotated[float, AllowInfNan(False), Gt(0), Le(2_147_483)]
Bytes = Annotated[int, Gt(0)]
#: What goes to brokers as a size.
WireBytes = Annotated[int, Gt(0), Lt(1 << 31)]


class BrokenRulesError(ValueError):
    """Rules about several keys that a table breaks: one sentence each, without a full stop."""

    def __init__(self, rules: Iterable[str]) -> None:
        self.rules = tuple(rules)
        super().__init__("; ".join(self.rules))


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    # What is wrong may be a password.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken, each a sentence that names its keys, without a full stop."""
        return iter(())

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        if broken := list(self.rules()):
            raise BrokenRulesError(broken)
        return self
