"""The stop button while a worker of a virtual Pod is frozen in the middle of a step."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import run_script
from support.tiers import THOROUGH

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]

SCRIPTS = Path(__file__).parents[2] / "pods"


@pytest.fixture(scope="module")
def freezing() -> Any:
    """Return the script's observations; it ends with a frozen worker, and must not wait for it."""
    return run_script(SCRIPTS / "freezing.py")


@THOROUGH
def test_a_cell_is_stopped(freezing: Any) -> None:
    assert freezing["cell"]["said"].startswith("inside the cell. Variables have the values")
    assert freezing["cell"]["after"] == [3.0] * 3


@THOROUGH
def test_a_run_of_steps_is_stopped(freezing: Any) -> None:
    assert freezing["steps"]["said"] == "(True, True, 0)"
    assert freezing["steps"]["after"] == [3.0] * 3


@THOROUGH
@pytest.mark.parametrize("whose", ["own", "given"])
def test_a_worker_that_freezes_while_the_process_ends(whose: str) -> None:
    assert run_script(SCRIPTS / "freezing_at_exit.py", whose) is True


def test_cut_connections_are_closed_before_more_is_sent() -> None:
    """In TensorFlow, another thread notices the cut, and closes the socket some time later."""
    from tpunb.connection.cluster.hanging_calls import cut_off

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        closed = []

        def close_when_cut() -> None:
            assert client.recv(1) == b""
            time.sleep(0.1)
            closed.append(True)
            client.close()

        thread = threading.Thread(target=close_when_cut)
        thread.start()
        cut_off({server.getsockname()})
        assert closed
        thread.join()
        accepted.close()


def test_cut_connections_that_stay_open_are_not_waited_for() -> None:
    from tpunb.connection.cluster.hanging_calls import cut_off

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        cut_off({server.getsockname()})
        assert client.recv(1) == b""
