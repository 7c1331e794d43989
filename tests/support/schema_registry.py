"""A schema registry on loopback: the requests of its REST API that reading needs, and its failures."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_thread import QuietHandler, ThreadedServer


class SchemaRegistryServer(ThreadedServer):
    """Serves `url` from a thread while it is entered. `script`: statuses and bodies of the next answers instead."""

    def __init__(self) -> None:
        self.by_id: dict[str, dict[str, Any]] = {}
        self.by_version: dict[tuple[str, str], dict[str, Any]] = {}
        self.script: deque[tuple[int, bytes]] = deque()
        #: Paths with their queries, and the headers, of all requests.
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        registry = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
                registry.requests.append(self.path)
                registry.headers.append(dict(self.headers))
                self.answer(*(registry.script.popleft() if registry.script else registry.answer(self.path)))

        super().__init__(Handler)
        self.url = self.base

    def add(
        self,
        schema: Any,
        *,
        kind: str = "AVRO",
        key: int | str | None = None,
        subject: str = "s",
        version: int = 1,
        references: Sequence[tuple[str, str, int]] = (),
        as_registered: bool = False,
    ) -> int | str:
        """Register a schema, JSON or the bytes of a FileDescriptorProto, and return its id.

        `as_registered`: as Apicurio, return the bytes in base64, and an error where they are asked for.
        """
        key = len(self.by_id) + 1 if key is None else key
        entry: dict[str, Any] = {"schema": schema if isinstance(schema, bytes) else json.dumps(schema)}
        if kind != "AVRO":  # as the API has it
            entry["schemaType"] = kind
        if as_registered:
            entry["as_registered"] = True
        if references:
            entry["references"] = [dict(zip(("name", "subject", "version"), each, strict=True)) for each in references]
        self.by_id[str(key)] = self.by_version[subject, str(version)] = entry
        return key

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        parts = urlsplit(path)
        match [unquote(each) for each in parts.path.strip("/").split("/")]:
            case ["schemas", "ids" | "guids", key]:
                found = self.by_id.get(key)
            case ["subjects", subject, "versions", version]:
                found = self.by_version.get((subject, version))
            case _:
                found = None
        if found is None:
            return 404, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
        entry = dict(found)
        if isinstance(entry["schema"], bytes):
            serialized = parse_qs(parts.query).get("format") == ["serialized"]
            if (as_registered := entry.pop("as_registered", False)) and serialized:
                return 500, b'{"error_code": 0, "message": "Syntax error"}'
            binary = serialized or as_registered
            entry["schema"] = base64.b64encode(entry["schema"]).decode() if binary else "syntax = 'proto3';"
        return 200, json.dumps(entry).encode()
