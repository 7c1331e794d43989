"""What the `postgres` handler says of a server that it cannot reach; the rest is tested with a real server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from consumerd.base.errors import HandlerLoadError
from consumerd.handlers import load_handler


@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        ("postgresql://user:secret@db1:5433/events", "db1:5433"),
        ("postgresql://user:secret@/events?host=/run/sockets", "/run/sockets"),
        ("postgresql:///events", "a local socket or localhost, as neither dsn nor PGHOST names a host"),
        (None, "a local socket or localhost, as neither dsn nor PGHOST names a host"),
    ],
)
async def test_error_of_a_server_out_of_reach_names_it(
    dsn: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 5432)")

    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.setattr(asyncpg, "create_pool", refuse)
    handler = load_handler("postgres", {"dsn": dsn})
    with pytest.raises(ConnectionError) as raised:
        await handler.start(SimpleNamespace(group="g"))  # type: ignore[arg-type]
    assert str(raised.value) == (
        f"cannot connect to PostgreSQL at {where}: Connection refused; check handler.options.dsn, and that "
        "the server runs"
    )


@pytest.mark.parametrize("dsn", ["host=db1 password=secret", "postgresql://user:secret@[::1/events"])
def test_rejects_a_dsn_that_is_not_a_url_without_showing_it(dsn: str) -> None:
    with pytest.raises(HandlerLoadError, match="dsn must be") as raised:
        load_handler("postgres", {"dsn": dsn})
    assert "secret" not in str(raised.value)
