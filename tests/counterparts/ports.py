"""Ports on the loopback that misbehave, and a proxy that falls silent.

with mute() as address:
    tpunb.connect(f"grpc://{address}", timeout=2)
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator

from support.patience import PATIENCE, wait_until

from counterparts.web import Handler, HTTPCounterpart

__all__ = ["Proxy", "dropping", "mute", "refusing", "web"]


def _listening(backlog: int = 50, host: str = "127.0.0.1") -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, 0))
    server.listen(backlog)
    return server


def _address(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Listen on a port that accepts connections, as the system does, and never answers."""
    with _listening() as server:
        yield _address(server)


@contextlib.contextmanager
def dropping() -> Iterator[str]:
    """Listen on a port whose backlog is full: the system drops the packets of new connections."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(0))
        for _ in range(16):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        _wait_until_full(server)
        yield _address(server)


def _wait_until_full(server: socket.socket) -> None:
    def is_full() -> bool:
        with socket.socket() as trial:
            trial.settimeout(0.1)  # the system accepts at once, or never
            return trial.connect_ex(server.getsockname()) != 0

    wait_until(is_full)


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """Reserve a port on which nothing listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield _address(reserved)


@contextlib.contextmanager
def web(
    answer: str = "<html>hello</html>", host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Run a web server with one answer to every request."""

    class Page(Handler):
        def do_GET(self) -> None:
            self.send(200, answer)

    class Site(HTTPCounterpart):
        handler = Page

    with Site(host, port) as site:
        yield site.host


class Proxy:
    """Forward a TCP port, and stop at certain bytes if asked.

    Args:
        target: The address to forward to, as `host:port`.
        delay: Seconds before anything is forwarded.
        stop_at: Bytes from a client that make the proxy fall silent for good.
        connections: How many connections are forwarded; later ones are silent.
        host: Where it listens.

    Attributes:
        address: Where it listens.
    """

    def __init__(
        self,
        target: str,
        *,
        delay: float = 0,
        stop_at: bytes = b"",
        connections: int = 1 << 20,
        host: str = "127.0.0.1",
    ) -> None:
        target_host, _, port = target.rpartition(":")
        self._target = (target_host, int(port))
        self._delay = delay
        self._stop_at = stop_at
        self._left = connections
        self._over = threading.Event()
        self.silent = threading.Event()
        self._server = _listening(host=host)
        self._open: list[socket.socket] = [self._server]
        self._threads: list[threading.Thread] = []
        self.address = _address(self._server)

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._open.append(client)
            self._left -= 1
            if self._left >= 0:
                self._start(lambda client=client: self._forward(client))

    def _forward(self, client: socket.socket) -> None:
        if self._over.wait(self._delay):
            return
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(self._target, timeout=PATIENCE) as server,
        ):
            self._copy(client, server)

    def _copy(self, client: socket.socket, server: socket.socket) -> None:
        while not self._over.is_set():
            for sock in select.select([client, server], [], [], 0.1)[0]:
                data = sock.recv(1 << 16)
                if sock is client and self._stop_at and self._stop_at in data:
                    self.silent.set()
                if self.silent.is_set():
                    self._over.wait(600)
                    return
                if not data:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                (server if sock is client else client).sendall(data)
