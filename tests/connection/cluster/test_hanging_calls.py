"""Calls that wait for other machines have a deadline, and their connections end."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from support.patience import PATIENCE

from tpunb._util.deadline import Running


def test_untested_releases_are_called_directly(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpunb.tensorflow.connection.cluster import hanging_calls
    from tpunb.tensorflow.virtual.private_names import pywrap_tfe

    original = pywrap_tfe.TFE_ContextClearCaches
    monkeypatch.setattr(hanging_calls, "_library", hanging_calls._library.__wrapped__)
    with hanging_calls.unlocked():
        assert pywrap_tfe.TFE_ContextClearCaches is not original
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    with hanging_calls.unlocked():
        assert pywrap_tfe.TFE_ContextClearCaches is original


def test_calls_with_a_time_limit() -> None:
    assert Running(lambda: 3).result(time.monotonic() + PATIENCE) == 3
    with pytest.raises(ZeroDivisionError):
        Running(lambda: 1 // 0).result(time.monotonic() + PATIENCE)
    began = time.monotonic()
    released = threading.Event()
    late = Running(released.wait)
    try:
        with pytest.raises(TimeoutError):
            late.result(began + 0.3)
        assert time.monotonic() - began >= 0.3
        with pytest.raises(TimeoutError):
            late.result(began)  # a deadline that has passed
    finally:
        released.set()


def test_connections_have_keepalive(tf: Any) -> None:
    """A machine that vanishes sends nothing, so its connections must time out."""
    from tpunb.tensorflow.connection.cluster.hanging_calls import set_keepalive

    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        with socket.create_connection(place) as first, socket.create_connection(place) as second:
            set_keepalive({("127.0.0.1", place[1] + 1)})
            assert not first.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            set_keepalive({place})
            for connection in (first, second):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                limit = first.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert 5_000 <= limit <= 30_000  # milliseconds
