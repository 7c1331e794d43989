"""Errors of broker connections: each names the broker as `host:port` and says what to look at."""

from __future__ import annotations

from consumerd.base.errors import BrokerError


class ConnectError(BrokerError):
    """No connection to the broker could be made: refused, unreachable, unknown host, or too slow."""


class TlsError(ConnectError):
    """The broker was reached, but TLS failed: its certificate is not accepted, or the listener does not speak TLS."""


class ConnectionClosedError(BrokerError):
    """The connection ended before the answer came. Whether the broker acted on the request is unknown.

    `blamed` is True for the one request that the broker was answering when the connection ended (the head of the
    queue); the requests behind it did not cause the end and may be sent again at once.
    """

    def __init__(self, message: str, *, blamed: bool = False) -> None:
        super().__init__(message)
        self.blamed = blamed


class ClientCertificateError(TlsError, ConnectionClosedError):
    """The broker refused the client's certificate, or requires one.

    TLS 1.3 checks it after the handshake, so that the first request on the connection fails, not the connecting.
    """


class TlsResetError(ConnectionClosedError):
    """A connection with TLS was reset before the first response: the broker may have refused the client's certificate.

    The alert that says so is lost where a request arrives at a broker that has closed the connection.
    """


class RequestTimeoutError(ConnectionClosedError):
    """The broker did not answer in time, and so the connection was closed."""


class BadFrameError(ConnectionClosedError):
    """The broker sent an invalid response: an impossible length, or bytes without a request."""


class UnexpectedTlsError(BadFrameError):
    """The broker answered a plaintext connection with TLS: it is a TLS listener."""


class FrameTooLargeError(BadFrameError):
    """The broker announced an answer larger than the request allows; nothing was allocated for it."""
