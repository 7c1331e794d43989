"""One blocking connection that carries frames: a request out, its answer in, each with its size before it.

Strategy: a plain socket with one deadline for each whole answer, so that a broker which trickles bytes is as late as
one that is silent. An answer's length is compared with what was asked for before anything is allocated for it. Whatever
goes wrong is one error that names the broker, and ends the connection: what came after it could not be told apart.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from consumerd.errors import reason_of
from consumerd.spark.source.errors import BrokerGoneError, BrokerLateError, BrokerReadError, BrokerRefusesError
from consumerd.wire.tls import is_tls_alert

if TYPE_CHECKING:
    import ssl


class FrameSocket:
    """A connection, made at once; over TLS with `tls`. `name`: `host:port`. Not for several threads.

    Every method raises BrokerReadError: BrokerGoneError for a broker that is unreachable or hangs up, BrokerLateError
    for one that takes longer than `timeout` seconds, BrokerRefusesError for a certificate that is not trusted; after it
    the connection is closed.
    """

    def __init__(self, host: str, port: int, timeout: float, *, tls: ssl.SSLContext | None = None) -> None:
        self.name = f"{host}:{port}"
        self._timeout = timeout
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError, OverflowError) as error:  # names and numbers that no address has
            raise BrokerGoneError(
                f"no connection to broker {self.name}: {_reason(error)}; is it running, and reachable from executors?"
            ) from error
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except (OSError, ValueError) as error:
                # A certificate that is not trusted, which is a ValueError too, stays so; else the broker may go down.
                kind = BrokerRefusesError if isinstance(error, ValueError) else BrokerGoneError
                raise self.broken(f"does not speak TLS as it should: {_reason(error)}", kind) from error

    def ask(self, request: bytes, least: int, most: int, where: str, *, timeout: float | None = None) -> memoryview:
        """The body of the answer's frame, which must have so many bytes. `where`: what is asked about."""
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(request)
            size = int.from_bytes(self._receive(4, deadline), signed=True)
            if size > most and is_tls_alert(size):
                what = "answered with TLS, which we did not speak; give kafka.security.protocol=SSL or SASL_SSL"
                raise self.broken(what, BrokerRefusesError)
            if not least <= size <= most:
                raise self.broken(f"announces an answer of {size} bytes about {where}, where {most} are the most")
            return self._receive(size, deadline)
        except TimeoutError as error:
            what = f"did not answer about {where} within {timeout:g} s; is it overloaded?"
            raise self.broken(what, BrokerLateError) from error
        except OSError as error:
            what = f"ended the connection before it answered about {where}: {_reason(error)}"
            raise self.broken(what, BrokerGoneError) from error

    def close(self) -> None:
        """End the connection; more than once is fine."""
        self._socket.close()

    def broken(self, what: str, kind: type[BrokerReadError] = BrokerReadError) -> BrokerReadError:
        """Close the connection; the error to raise, which names the broker before `what`."""
        self.close()
        return kind(f"broker {self.name} {what}")

    def _receive(self, size: int, deadline: float) -> memoryview:
        """Exactly so many bytes. Raises OSError, TimeoutError."""
        view, filled = memoryview(bytearray(size)), 0  # large ones take memory only as they fill
        while filled < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError(0, f"it hung up after {filled} of {size} bytes")
            filled += count
        return view


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
