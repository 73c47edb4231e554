"""An HTTP server on the loopback, in its own threads, which a test starts and stops."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["HTTPCounterpart", "Handler"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: Any


class Handler(BaseHTTPRequestHandler):
    """Answer one request; the counterpart is `self.server.owner`."""

    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client has gone
            super().handle()

    def send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete answer."""
        body = text.encode()
        self._begin(status, len(body), headers)
        self.wfile.write(body)

    def trickle(self, headers: Mapping[str, str] | None = None) -> None:
        """Send a byte every tenth of a second."""
        self._begin(200, 1_000_000, headers)
        while not self.server.owner.stopped.wait(0.1):
            self.wfile.write(b" ")

    def _begin(self, status: int, length: int, headers: Mapping[str, str] | None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing on the terminal."""


class HTTPCounterpart:
    """A server that runs during its `with` block.

    Attributes:
        host: Its address, as `host:port`.
        requests: The paths of the requests, as the handler records them.
        stopped: Set when the server stops; waiting clients get no answer.
    """

    handler: type[Handler]

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[str] = []
        self.stopped = threading.Event()
        self._server = _Server((host, port), self.handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def host(self) -> str:
        return "{}:{}".format(*self._server.server_address[:2])

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and all requests that wait for an answer."""
        if self.stopped.is_set():
            return
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
