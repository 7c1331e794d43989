"""The validation of a configuration: pydantic models made of its tables, which read TOML with environment overrides.

Strategy: each table (`consumerd.base.settings`) has a model with the same keys, whose validation ends in an instance
of the table. Only what reads a configuration, or describes its keys, imports this module, and with it pydantic; a
daemon does so in a child process (`consumerd.service.config.child`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import annotated_types
import pydantic
from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from consumerd.base.settings import kind
from consumerd.base.settings.moments import STARTS, is_start
from consumerd.base.settings.setting import Rule, SecretStr, Section, Setting
from consumerd.service.config.problems import (
    ConfigProblemsError,
    UnreadableVariableError,
    has_variables,
    problems_of,
    unexpanded_variables,
    unknown_variables,
    unreadable_variables,
)

_Section = TypeVar("_Section", bound=Section)


class Table(BaseModel):
    """A model of a table. Unknown keys are errors."""

    # The invalid value may be a password. A table is read as a part of the whole model: its own validator, which would
    # take as long to build again at every start, is built when something uses it by itself.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class _TableOf(Table):
    """The model of a `Section`, which its validation returns."""

    table: ClassVar[type[Section]]

    def made(self) -> Section:
        """Make the table. Raises BrokenRulesError."""
        values = {name: getattr(self, name) for name in self.model_fields_set} | (self.model_extra or {})
        return type(self).table(**{name: _without_pydantic(value) for name, value in values.items()})

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Any:
        return self.made()


class _Root(_TableOf):
    """The model of the whole configuration: as the environment may be merged with it, it stays a model."""

    _config: Section = PrivateAttr()

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Validate `document`. Raises ValidationError."""
        return cls(**document)

    @property
    def config(self) -> Section:
        """The configuration."""
        return self._config

    @field_validator("subscriptions", mode="before", check_fields=False)
    @classmethod
    def _is_an_array_of_tables(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple) or not all(isinstance(each, dict | Section) for each in value):
            raise ValueError("it must be an array of tables: begin each of them with [[subscriptions]]")
        return value

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        self._config = self.made()
        return self


def _without_pydantic(value: Any) -> Any:
    if isinstance(value, pydantic.SecretStr):
        return SecretStr(value.get_secret_value())
    if isinstance(value, tuple) and value and isinstance(value[0], pydantic.SecretStr):
        return tuple(map(_without_pydantic, value))
    return value


_models: dict[type[Section], type[BaseModel]] = {}


def model_of(table: type[Section]) -> type[BaseModel]:
    """The pydantic model of a table, of the same name, with the models of the tables in it."""
    if table not in _models:
        _models[table] = _make_model(table)
    return _models[table]


def _make_model(table: type[Section]) -> type[BaseModel]:
    hints = get_type_hints(table, include_extras=True)
    keys: dict[str, Any] = {name: (_type_of(hints[name]), _key(field)) for name, field in table.fields.items()}
    parent = type(
        table.__name__,
        (_Root if getattr(table, "whole", False) else _TableOf,),
        {"table": table, "__module__": __name__},
    )
    if table.extra:
        parent.model_config = ConfigDict(**{**Table.model_config, "extra": "allow"})  # type: ignore[attr-defined]
    return create_model(table.__name__, __base__=parent, __module__=table.__module__, __doc__=table.__doc__, **keys)


def table_of(table: type[_Section], **values: Any) -> _Section:
    """Validate the `values` of one table. Raises ValidationError."""
    return cast("_Section", model_of(table).model_validate(values))


def _key(field: Setting) -> Any:
    factory = field.factory
    if factory is not None:
        if isinstance(factory, type) and issubclass(factory, Section):  # which the environment's model validates
            factory = model_of(factory).model_construct
        return pydantic.Field(default_factory=factory, description=field.about or None, **field.more)
    default = {} if field.required else {"default": field.default}
    return pydantic.Field(**default, description=field.about or None, **field.more)


def _start(text: str) -> str:
    if not is_start(text):
        raise PydanticCustomError("start", "must be {starts}", {"starts": STARTS})
    return text


_PYDANTIC: Final[dict[type, Callable[..., Any]]] = {
    kind.Finite: lambda _: AllowInfNan(False),
    kind.Gt: annotated_types.Gt,
    kind.Ge: annotated_types.Ge,
    kind.Lt: annotated_types.Lt,
    kind.Le: annotated_types.Le,
    kind.StartText: lambda _: pydantic.AfterValidator(_start),
}


def _type_of(annotation: Any) -> Any:
    """The type of a key with pydantic's own for those of `consumerd.base.settings`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is SecretStr:
        return pydantic.SecretStr
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return model_of(annotation)
    if origin is Annotated:
        bounds = (
            _PYDANTIC[type(each)](getattr(each, "limit", None)) for each in arguments[1:] if type(each) in _PYDANTIC
        )
        return Annotated[(_type_of(arguments[0]), *bounds)]
    if origin in (Union, types.UnionType):
        return reduce(or_, map(_type_of, arguments))
    if origin is None or origin is Literal:
        return annotation
    return origin[tuple(map(_type_of, arguments))]


def _root(table: type[Section], environment: bool) -> type[_Root]:
    """The model of the document, under the environment where that has variables for us."""
    if not (environment and has_variables()):
        return model_of(table)  # type: ignore[return-value]
    # 3 MiB and a twentieth of the start, which daemons without variables are spared.
    from consumerd.service.config.environment import config_with_environment  # noqa: PLC0415

    found: type[_Root] = config_with_environment(model_of(table))
    return found


def parse(table: type[_Section], document: dict[str, Any], source: str, *, environment: bool = True) -> _Section:
    """As `consumerd.service.config.model.parse`; `table` is that of the whole configuration."""
    root = model_of(table)
    problems = unexpanded_variables(document)
    if environment:
        problems += unknown_variables(root)
    try:
        config = cast("_Section", _root(table, environment).read(document).config)
    except ValidationError as error:
        raise ConfigProblemsError(source, problems + problems_of(error, root, document)) from error
    except (UnreadableVariableError, RecursionError) as error:
        problems += unreadable_variables(error, root)
    else:
        if not problems:
            return config
    raise ConfigProblemsError(source, problems) from None  # the cause has the text of the variable


def parse_valid_tables(table: type[_Section], document: dict[str, Any], invalid: frozenset[str]) -> _Section:
    """The configuration `table` with defaults for the `invalid` tables, so that the others can be checked further.

    Rules about several tables are not checked. Raises ValidationError if another table is invalid, too, and
    UnreadableVariableError.
    """

    class WithoutRules(table):  # type: ignore[misc, valid-type]
        def rules(self) -> Iterator[str | Rule]:
            return iter(())

    class Valid(_root(table, environment=True)):  # type: ignore[misc]
        table = WithoutRules

        @model_validator(mode="before")
        @classmethod
        def _leave_out(cls, tables: dict[str, Any]) -> dict[str, Any]:
            group = {"group": {"id": "unknown", "topics": {"unknown": 1}}} if "group" in invalid else {}
            return {name: table for name, table in tables.items() if name not in invalid} | group

    return cast("_Section", Valid.read(document).config)
