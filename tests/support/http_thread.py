"""An HTTP server on loopback in a thread, for what is tested without an event loop of its own."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that closed the connection, or that do not trust it."""


class ThreadedServer:
    """Serves `base`, a URL without a path, while it is entered. `answer` is the handler of each request."""

    def __init__(self, answer: type[QuietHandler], *, tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), answer)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.base = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole response."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
