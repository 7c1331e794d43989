"""A schema registry: the schemas that messages name by an id, with those that they refer to.

Strategy: the REST API that Confluent documents and others offer, too (Apicurio, Karapace, Redpanda), of which two
requests are enough: a schema by its id or GUID, and one by its subject and version, as references name theirs.
Protobuf is asked for in its binary form (`format=serialized`) where the registry has returned a `.proto` file: nothing
here has to understand those. Apicurio returns what was registered, also the binary form, and fails when it is asked for
that form of it.

A client blocks; the daemon calls it in a thread.
"""

from __future__ import annotations

import base64
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import quote, urlsplit

from consumerd.base.errors import ConfigError
from consumerd.net.errors import ConnectError
from consumerd.net.http.request import HttpAnswer, ask
from consumerd.net.schemas.errors import DecodeError
from consumerd.net.tls import make_tls_context

_TIMEOUT: Final = 10.0
_NOT_FOUND: Final = 404
_OK: Final = 200
#: Schemas that one schema may refer to, directly and through others.
_MOST_REFERENCES: Final = 500
_FORMATS: Final = {"PROTOBUF": "serialized"}
#: The API leaves the type out for Avro, the first one that it had.
_DEFAULT_TYPE: Final = "AVRO"
#: Schemas that are kept, and ids that the registry does not have; and for how long those are not asked for again.
KEPT: Final = 10_000
_UNKNOWN_SECONDS: Final = 60.0


class RegistryUnavailableError(ConnectError):
    """The registry does not answer, or not with a schema: a later request may succeed."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema. `kind`: AVRO, PROTOBUF or JSON; `references`: those that it needs, by the name that it uses.

    References come before the schemas that refer to them.
    """

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class SchemaRegistry:
    """A client of a schema registry. Raises ConfigError for an invalid URL.

    `password`, `token` and `tls` are called for each request, so they may be renewed. `timeout`: seconds for each.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: Callable[[], str] | None = None,
        token: Callable[[], str] | None = None,
        tls: Callable[[], SSLContext] | None = None,
        timeout: float = _TIMEOUT,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError("url must have the form https://host:port/path.")
        if parts.username is not None:
            raise ConfigError("url must not have a user or password: give user, and password or password_file.")
        self.url = url.rstrip("/")
        self._user, self._password, self._token = user, password, token
        self._timeout = timeout
        self._tls = tls or make_tls_context

    def schema(self, key: int | str) -> RegisteredSchema:
        """Return the schema with an id, or a GUID. Raises DecodeError if there is none, RegistryUnavailableError."""
        kind, path = ("guids", key) if isinstance(key, str) else ("ids", str(key))
        what = f"schema {key}"
        document, schema_type = self._usable(f"schemas/{kind}/{quote(path, safe='')}", what)
        references: dict[str, str] = {}
        self._add_references(document, schema_type, what, references, set())
        return RegisteredSchema(schema_type, self._text(document, what), references)

    def _add_references(
        self, document: Mapping[str, Any], kind: str, what: str, found: dict[str, str], seen: set[tuple[str, int]]
    ) -> None:
        """Add what `document` refers to, and first of all what that refers to."""
        listed = document.get("references") or []
        if not isinstance(listed, list):
            raise self._nonsense(what)
        for each in listed:
            name, subject, version = (each.get(key) if isinstance(each, dict) else None for key in _REFERENCE)
            if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
                raise self._nonsense(what)
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > _MOST_REFERENCES:
                raise DecodeError(f"{what} refers to more than {_MOST_REFERENCES} other schemas")
            of = f"version {version} of {subject}, to which {what} refers"
            referred, _ = self._usable(f"subjects/{quote(subject, safe='')}/versions/{version}", of, kind)
            self._add_references(referred, kind, what, found, seen)
            found[name] = self._text(referred, of)

    def _usable(self, path: str, what: str, kind: str | None = None) -> tuple[dict[str, Any], str]:
        """The schema at `path`, in the form in which it is used, and its type, which is `kind` if that is known."""
        document = self._get(path, what)
        kind = self._type_of(document, what) if kind is None else kind
        if kind in _FORMATS and not _is_base64(self._text(document, what)):
            document = self._get(f"{path}?format={_FORMATS[kind]}", what)
        return document, kind

    def _get(self, path: str, what: str) -> dict[str, Any]:
        answer = self._ask(f"{self.url}/{path}")
        if answer.status == _NOT_FOUND:
            raise DecodeError(f"unknown {what}: the registry {self.url} does not have it")
        if answer.status != _OK:
            raise RegistryUnavailableError(f"the schema registry {self.url} answers with status {answer.status}")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self._nonsense(what)
        return document

    def _ask(self, url: str) -> HttpAnswer:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token()}"
        elif self._user is not None:
            pair = f"{self._user}:{self._password() if self._password is not None else ''}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            return ask(url, headers=headers, tls=self._tls, timeout=self._timeout)
        except ConnectError as error:
            raise RegistryUnavailableError(f"the schema registry {self.url} cannot be asked: {error}") from None

    def _type_of(self, document: Mapping[str, Any], what: str) -> str:
        kind = document.get("schemaType", _DEFAULT_TYPE)
        if not isinstance(kind, str):
            raise self._nonsense(what)
        return kind

    def _text(self, document: Mapping[str, Any], what: str) -> str:
        text = document.get("schema")
        if not isinstance(text, str):
            raise self._nonsense(what)
        return text

    def _nonsense(self, what: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"the schema registry {self.url} answers with something that is not {what}; is it the URL of its API?"
        )


class SchemaCache:
    """The schemas of one registry, by id or GUID.

    A schema with an id never changes, so it is kept; an id that is unknown may be registered later, so it is asked for
    again after a minute.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry
        self._schemas: OrderedDict[int | str, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[int | str, tuple[float, str]] = OrderedDict()

    def get(self, key: int | str) -> RegisteredSchema | None:
        """The schema with an id, None if it has to be read first. Raises DecodeError if the registry lacks it."""
        schema = self._schemas.get(key)
        if schema is None:
            until, reason = self._unknown.get(key, (0.0, ""))
            if until > time.monotonic():
                raise DecodeError(reason)
        return schema

    def load(self, key: int | str) -> None:
        """Read a schema; `get` has the result. Blocks. Raises ConnectError while the registry is not there."""
        try:
            keep(self._schemas, key, self.registry.schema(key))
        except DecodeError as error:
            keep(self._unknown, key, (time.monotonic() + _UNKNOWN_SECONDS, str(error)))

    def has_result(self, key: int | str) -> bool:
        """Whether `get` has the schema, or an error."""
        return key in self._schemas or self._unknown.get(key, (0.0,))[0] > time.monotonic()


def keep(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    """Add a value to a cache, whose oldest one is dropped where it is full."""
    kept[key] = value
    if len(kept) > KEPT:
        kept.popitem(last=False)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


_REFERENCE: Final = ("name", "subject", "version")
