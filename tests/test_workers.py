"""How workers end: at a signal, at two, and with the process that started them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment

from tpunb.bounded import Running, bounded
from tpunb.worker import _Stopped, _Told

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def test_the_first_signal_is_raised_and_noted() -> None:
    told = _Told()
    with pytest.raises(_Stopped):
        told(signal.SIGINT, None)
    assert told.to_stop
    told(signal.SIGTERM, None)  # says nothing new


@needs_proc
def test_signals_while_it_starts() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tpunb", "worker", "--cores", "1", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    try:
        _wait_for_handler(process.pid)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert said.endswith("The worker has stopped.\n")
    assert "Traceback" not in errors


def _wait_for_handler(process: int) -> None:
    """Waits until SIGTERM is handled, which is before TensorFlow is imported."""
    for _ in range(600):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.05)
    raise AssertionError("the worker handles no signals")


@needs_proc
def test_a_worker_that_starts_ends_with_its_parent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tpunb.worker", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        _wait_for_handler(process.pid)
        said, _ = process.communicate(timeout=60)  # closes its standard input
    finally:
        process.kill()
    assert (said, process.returncode) == (b"", 0), "it did not start to the end"


def test_calls_with_a_time_limit() -> None:
    assert bounded(lambda: 3, time.monotonic() + 30) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, time.monotonic() + 30)
    began = time.monotonic()
    late = Running(lambda: time.sleep(3))
    with pytest.raises(TimeoutError):
        late.result(began + 0.7)
    assert 0.7 <= time.monotonic() - began < 2.5
    with pytest.raises(TimeoutError):
        late.result(began)  # a deadline that is over


def test_connections_are_watched(tf: Any) -> None:
    """A machine that vanishes says nothing: its connections have to end by themselves."""
    from tpunb.virtual.waiting import watch

    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        with socket.create_connection(place) as mine, socket.create_connection(place) as other:
            assert watch({("127.0.0.1", place[1] + 1)}) == 0
            assert not mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert watch({place}) == 2
            for connection in (mine, other):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                limit = mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert 5_000 <= limit <= 30_000  # milliseconds
