"""Workers that die, and processes that die and leave their own workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from counterparts.children import WITHOUT_KERAS, command, environment, run_script, wait_until_gone
from jupyter_client.manager import KernelManager
from support.patience import PATIENCE
from support.tiers import THOROUGH

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, THOROUGH]

SCRIPTS = Path(__file__).parents[2] / "pods"


@pytest.fixture(scope="module")
def dying() -> Any:
    """Kill a worker in the middle of a step, and return the script's observations."""
    return run_script(SCRIPTS / "dying.py", keras=True)


def test_output_is_shown_by_replica(dying: Any) -> None:
    lines = [
        line
        for replica in range(2)
        for line in (
            f"[replica {replica}] first [0 {replica} {2 * replica} {3 * replica}]",
            f"[replica {replica}] sum 0",
            f"[replica {replica}] sum 2",
        )
    ]
    (*first, note), second = dying["printed"]
    assert note.startswith("On a TPU, printing needs")
    assert first == second == lines


def test_the_step_ends_with_an_explained_error(dying: Any) -> None:
    assert dying["error"] == "UnavailableError"
    assert dying["code"] == "14"
    assert dying["lost"] == 1


def test_the_process_survives(dying: Any) -> None:
    assert dying["here"] == 3.0


def test_lost_objects_explain_themselves(dying: Any) -> None:
    assert dying["old_is_closed"]
    assert dying["stale"] == "InvalidArgumentError"  # not a crash


def test_training_continues_to_the_same_weights(dying: Any) -> None:
    assert dying["resumed_at"] == 3
    np.testing.assert_allclose(dying["weights"], dying["expected"], rtol=1e-5)


def test_magics_and_a_crash_leave_no_worker() -> None:
    """Lost values of a Pod show a short message, not pages of TensorFlow's text."""
    with subprocess.Popen(
        command(SCRIPTS / "leaving.py"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            left, workers = islice(lines_of_json(process.stdout), 2)
            *errors, values, cell = left.pop("shown")
            assert left == {"disconnect": [], "unload": []}
            assert len(workers) == 1
        finally:
            process.kill()
    assert wait_until_gone(workers) == []
    warning, _, cell = cell.strip().partition("\n")
    assert warning.startswith(
        "Warning, line 1 of the cell: `v` belongs to a connection that is closed"
    )
    for text in (*errors, cell):
        assert ": This value belongs to the connection to virtual TPU 1 core, 1 replica" in text
        assert text.strip().count("\n") == 1
    for specs in ("int32 [3]", "float32 [2]"):
        assert specs in values
    assert "cannot be read: its connection is closed, or lost" in values


def lines_of_json(stream: IO[bytes]) -> Iterator[Any]:
    """Yield the lines that are JSON, and skip the others."""
    for line in iter(stream.readline, b""):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def test_a_kernel_that_is_stopped_leaves_no_worker() -> None:
    manager = KernelManager()
    manager.start_kernel(env=environment())
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        client.execute(
            f"{WITHOUT_KERAS}import tpunb\n"
            "c = tpunb.connect(simulate=1, local_workers=True, timeout=240)",
            silent=True,
        )
        reply = client.execute_interactive(
            "pass",
            user_expressions={"workers": "list(c.pod.local.process_ids)"},
            output_hook=lambda message: None,
            timeout=PATIENCE,
        )
        expression = reply["content"]["user_expressions"]["workers"]
        workers = json.loads(expression["data"]["text/plain"])
        # The stop button must not stop the workers.
        manager.interrupt_kernel()
        os.kill(workers[0], 0)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert wait_until_gone(workers) == []


def thread_of(process: int) -> int:
    """Return a thread of a process other than its main thread, if the system numbers threads.

    A signal to the process may reach any of its threads, and does not wake the others.
    """
    threads = Path(f"/proc/{process}/task")
    return max(int(thread.name) for thread in threads.iterdir()) if threads.exists() else process


def test_a_worker_of_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "said"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [sys.executable, "-m", "tpunb", "worker", "--cores", "3", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        try:
            lines: list[str] = []
            while not any("Ctrl-C" in line for line in lines):
                line = process.stdout.readline().decode()
                assert line, log.read_text()
                lines.append(line)
            text = "".join(lines)
            os.kill(thread_of(process.pid), signal.SIGINT)
            assert process.wait(PATIENCE) == 0
            assert process.stdout.read() == b"The worker has stopped.\n"
        finally:
            process.kill()
    assert "3 virtual TPU cores" in text
    assert "without a password" in text
    assert "%tpu_connect --workers" in text


@pytest.fixture(scope="module")
def returning() -> Any:
    """Kill a worker, start it again on its port, and return what a notebook shows."""
    return run_script(SCRIPTS / "returning.py")


def test_a_lost_worker(returning: Any) -> None:
    assert "nothing listens on this port" in returning["gone"]
    assert "tpunb worker --cores" in returning["gone"]


def test_a_restarted_worker(returning: Any) -> None:
    assert returning["again"]
    assert "restarted, and all that was there is lost" in returning["said"]
    assert returning["before"] == returning["after"] == 2.0


def test_a_virtual_tpu_after_a_pod(returning: Any) -> None:
    assert returning["virtual"] == 2.0
    assert returning["ended"] == 0
