"""Workers end at a signal, at a second signal, and with their parent process."""

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
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert output.endswith("The worker has stopped.\n")
    assert "Traceback" not in errors


def _wait_for_handler(process: int) -> None:
    """Wait until SIGTERM is handled, which happens before TensorFlow's import."""

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
        output, _ = process.communicate(timeout=PATIENCE)  # closes the standard input
    finally:
        process.kill()
    assert (output, process.returncode) == (b"", 0), "the worker did not finish its start"


def test_local_workers_that_start_late_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectError, match=r"2 of 2 local workers were not ready after 0\.1 s"):
        LocalWorkers(2, 1, timeout=0.1)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ConnectError, match="could not be started: it printed nothing") as raised:
        LocalWorkers(2, 1, timeout=PATIENCE)
    assert "tpunb worker --port 0" in raised.value.fix


def test_untested_releases_are_called_directly(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpunb.connection.cluster import hanging_calls
    from tpunb.virtual.tensorflow.private_names import pywrap_tfe

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
    from tpunb.connection.cluster.hanging_calls import set_keepalive

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
