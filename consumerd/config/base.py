"""The base of all tables of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

from annotated_types import Gt, Le, Lt
from pydantic import AllowInfNan, BaseModel, ConfigDict, SecretStr, model_validator

from consumerd.credentials import read_secret, read_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

#: Thirty years: TOML has an infinity, which neither timers nor requests have.
Seconds = Annotated[float, AllowInfNan(False), Gt(0), Le(1_000_000_000)]
#: A value sent to brokers as milliseconds of 32 bits.
WireSeconds = Annotated[float, AllowInfNan(False), Gt(0), Le(2_147_483)]
Bytes = Annotated[int, Gt(0)]
#: A value sent to brokers as a size.
WireBytes = Annotated[int, Gt(0), Lt(1 << 31)]


def is_secret(annotation: Any) -> bool:
    """Whether values of this type are never shown."""
    return annotation is SecretStr or any(is_secret(part) for part in get_args(annotation))


class Rule(NamedTuple):
    """A broken rule whose place its words do not tell: that of a key in one of several tables of the same name."""

    sentence: str
    place: tuple[str | int, ...]


class BrokenRulesError(ValueError):
    """Rules about several keys that a table breaks: one sentence each, without a full stop."""

    def __init__(self, rules: Iterable[str | Rule]) -> None:
        self.rules = tuple(rules)
        super().__init__("; ".join(rule if isinstance(rule, str) else rule.sentence for rule in self.rules))


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    # The invalid value may be a password. A table is read as a part of the whole model: its own validator, which would
    # take as long to build again at every start, is built when something uses it by itself.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken, each a sentence that names its keys, without a full stop."""
        return iter(())

    @classmethod
    def secret_keys(cls) -> list[str]:
        """The keys of secrets: each has another one beside it, with `_file` at its end (a test checks that)."""
        return [name for name, field in cls.model_fields.items() if is_secret(field.annotation)]

    def secret(self, key: str, table: str) -> str | None:
        """The secret of a key, from the configuration or from its file; `table` names this table in errors.

        Raises ConfigError for a file that cannot be read.
        """
        path = getattr(self, f"{key}_file")
        if path is not None:
            return read_secret(path, f"{table}.{key}_file")
        value: SecretStr | None = getattr(self, key)
        return None if value is None else value.get_secret_value()

    def secrets(self, key: str, table: str) -> list[str]:
        """As `secret`, of a key with several."""
        path = getattr(self, f"{key}_file")
        if path is not None:
            return read_secrets(path, f"{table}.{key}_file")
        return [each.get_secret_value() for each in getattr(self, key)]

    def _ambiguous(self) -> Iterator[str]:
        for key in self.secret_keys():
            if getattr(self, key) and getattr(self, f"{key}_file") is not None:
                yield f"give exactly one of {key} and {key}_file"

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        if broken := [*self._ambiguous(), *self.rules()]:
            raise BrokenRulesError(broken)
        return self
