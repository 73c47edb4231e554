"""How workers end: at a signal, at two, and with the process that started them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment
from support.patience import PATIENCE, wait_until

from tpunb._util.deadline import Running
from tpunb.connection.cluster.local_workers import LocalWorkers
from tpunb.errors import ConnectError

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.tensorflow
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
        said, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert said.endswith("The worker has stopped.\n")
    assert "Traceback" not in errors


def _wait_for_handler(process: int) -> None:
    """Waits until SIGTERM is handled, which is before TensorFlow is imported."""

    def handles() -> bool:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(handles)


@needs_proc
@pytest.mark.tensorflow
def test_a_worker_that_starts_ends_with_its_parent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tpunb.connection.cluster.worker", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        _wait_for_handler(process.pid)
        said, _ = process.communicate(timeout=PATIENCE)  # closes its standard input
    finally:
        process.kill()
    assert (said, process.returncode) == (b"", 0), "it did not start to the end"


def test_local_workers_that_are_late_or_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectError, match=r"2 of 2 local workers were not ready after 0\.1 s"):
        LocalWorkers(2, 1, timeout=0.1)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ConnectError, match="could not be started: it printed nothing") as raised:
        LocalWorkers(2, 1, timeout=PATIENCE)
    assert "tpunb worker --port 0" in raised.value.fix


def test_a_release_that_is_not_tested_is_called_the_plain_way(
    tf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpunb.connection.cluster import time_limit
    from tpunb.virtual._tensorflow import pywrap_tfe

    original = pywrap_tfe.TFE_ContextClearCaches
    monkeypatch.setattr(time_limit, "_library", time_limit._library.__wrapped__)
    with time_limit.unlocked():
        assert pywrap_tfe.TFE_ContextClearCaches is not original
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    with time_limit.unlocked():
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
            late.result(began)  # a deadline that is over
    finally:
        released.set()


def test_connections_are_watched(tf: Any) -> None:
    """A machine that vanishes says nothing: its connections have to end by themselves."""
    from tpunb.connection.cluster.time_limit import set_keepalive

    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        with socket.create_connection(place) as mine, socket.create_connection(place) as other:
            set_keepalive({("127.0.0.1", place[1] + 1)})
            assert not mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            set_keepalive({place})
            for connection in (mine, other):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                limit = mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert 5_000 <= limit <= 30_000  # milliseconds
