"""TLS and a password before brokers that have neither, so that a test changes both while real processes run.

Strategy: a gate ends TLS, answers the requests of SASL itself (PLAIN), and passes every byte of a client that has
authenticated on to its broker. What gates have in common is a `Lock`: brokers of a cluster change together. Brokers
look at a password and show their certificate when a connection is made: code that changes one of them calls `cut`.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path
from typing import Any, Final, Self

import trustme

from consumerd.demo.ports import LOOPBACK
from consumerd.wire.v08.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.headers import ResponseHeader, read_api
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response

USER: Final = "member"
_CHUNK: Final = 65_536
_REFUSED: Final = 58
_DAY: Final = datetime.timedelta(days=1)


class Lock:
    """The password that brokers accept, and the certificate that they show; in `folder` the files of their clients."""

    def __init__(self, folder: Path, password: str = "first") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = trustme.CA()
        self._authority_file, self._password_file = folder / "authority.pem", folder / "password"
        self._authority.cert_pem.write_to_path(self._authority_file)
        self.password = password
        self.tell_clients()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.renew()

    def client_tables(self) -> dict[str, Any]:
        """The tables of `[kafka]` of a client with these files."""
        sasl = {"mechanism": "PLAIN", "user": USER, "password_file": str(self._password_file)}
        return {"tls": {"ca": str(self._authority_file)}, "sasl": sasl}

    def tell_clients(self) -> None:
        """Write the password to their file, as another file that takes its name."""
        beside = self._password_file.with_suffix(".new")
        beside.write_text(self.password)
        beside.rename(self._password_file)

    def renew(self) -> None:
        """Show a new certificate from the next connection on."""
        self._show(_DAY)

    def expire(self) -> None:
        """Show a certificate that has expired."""
        self._show(-_DAY)

    def _show(self, left: datetime.timedelta) -> None:
        until = datetime.datetime.now(datetime.UTC) + left
        self._authority.issue_cert(LOOPBACK, not_after=until).configure_cert(self.context)


class SecureGate:
    """The gate before one listener of a broker, on a free port of loopback."""

    def __init__(self, lock: Lock, host: str, port: int) -> None:
        self._lock = lock
        self._target = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Clients that were refused.
        self.refused = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, ssl=self._lock.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = {writer}
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection(*self._target)
            ends.add(back)
            self._writers.add(back)
            if await self._authenticated(reader, writer, there, back):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, back))
                    group.create_task(self._pass_on(there, writer))
        except* (OSError, EOFError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _authenticated(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> bool:
        """Answer until the client has authenticated; False for one that may not, or sends another request before."""
        while True:
            frame = await _frame(reader)
            key, version = read_api(frame[4:])
            if key == API_VERSIONS.key:
                back.write(frame)
                writer.write(await _frame(there))
                continue
            if key not in (SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key):
                return False
            api = APIS[key]
            header, body = decode_request(api, frame[4:])
            accepted = True
            if api is SASL_HANDSHAKE:
                answer = {"error_code": 0, "mechanisms": ["PLAIN"]}
            else:
                accepted = bytes(body["auth_bytes"]) == f"\0{USER}\0{self._lock.password}".encode()
                answer = {"error_code": 0 if accepted else _REFUSED, "error_message": None, "auth_bytes": b""}
            writer.write(encode_response(api, version, ResponseMessage(ResponseHeader(header.correlation_id), answer)))
            await writer.drain()
            if api is SASL_AUTHENTICATE:
                self.refused += not accepted
                return accepted

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        raise EOFError  # ends the other direction, too


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next request or answer, its size included. Raises EOFError."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))
