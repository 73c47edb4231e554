"""Kill a worker and start it again on its port, as seen by a notebook's shell.

Prints the results as a line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile

from counterparts.workers import free_port
from IPython.core.interactiveshell import InteractiveShell

from tpunb.errors import ConnectError

PROGRAM = """
import tensorflow as tf
with strategy.scope():
    v = tf.Variable(1.0)
"""
CELL = "v.assign_add(1.0)\nv.read_value()"


def start(port: int) -> subprocess.Popen[bytes]:
    """Start a worker on a port and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tpunb", "worker", "--cores", "2", "--port", str(port)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert b"listens on port" in process.stdout.readline()
    return process


def main() -> None:
    """Connect, lose the worker, and connect again."""
    shell = InteractiveShell.instance(ipython_dir=tempfile.mkdtemp())
    shell.run_line_magic("load_ext", "tpunb")
    port = free_port()
    connect = f"--workers localhost:{port} --timeout 600"
    worker = start(port)

    def run() -> float:
        shell.run_cell(PROGRAM).raise_error()
        shell.run_cell_magic("tpu_run", "-o found", CELL)
        values = shell.user_ns["strategy"].experimental_local_results(shell.user_ns["found"])
        return float(values[-1])

    first = shell.run_line_magic("tpu_connect", connect)
    assert shell.run_line_magic("tpu_connect", connect) is first
    results = {"before": run()}
    worker.kill()
    worker.wait()
    try:
        shell.run_line_magic("tpu_connect", connect)
    except ConnectError as error:
        results["gone"] = str(error)
    worker = start(port)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        second = shell.run_line_magic("tpu_connect", connect)
    results["said"] = output.getvalue()
    results["again"] = second is not first and not second.closed and first.closed
    results["after"] = run()
    shell.run_line_magic("tpu_disconnect", "")
    shell.run_line_magic("tpu_connect", "--simulate 2")
    results["virtual"] = run()
    worker.terminate()
    results["ended"] = worker.wait(240)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
