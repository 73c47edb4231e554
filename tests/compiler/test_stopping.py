"""The stop button during a compilation, in a separate kernel."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS, environment
from jupyter_client.manager import KernelManager
from support.kernels import Client
from support.patience import wait_until
from support.tiers import THOROUGH

from tpunb.display.widgets import frontend

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("libtpu")]

SETUP = """\
import tensorflow as tf, tpunb
from tpunb.compiler.ask import libtpu
%load_ext tpunb
%tpu_connect --simulate v5e-8
x = tf.ones([8, 128])
print("pid", libtpu.start() or libtpu._child()._process.pid)"""
CELL = "%%tpu_compile --timeout 100000\ny = tf.nn.relu(x @ tf.transpose(x))"
FUNCTION = "tpunb.compile(lambda x: x @ x, tf.TensorSpec([16, 16]), timeout=100000)"


@THOROUGH
def test_a_compilation_is_stopped_and_the_next_works() -> None:
    manager = KernelManager()
    manager.start_kernel(env={**environment(), frontend.VARIABLE: "always"})
    client = Client(manager)
    try:
        pid = _printed(client.run(WITHOUT_KERAS + SETUP))
        for code, error in ((CELL, "Stopped"), (FUNCTION, "KeyboardInterrupt")):
            os.kill(pid, signal.SIGSTOP)  # a compilation that never ends
            content, _ = client.run(code, interrupt_at="compiling for v5e-8, ")
            assert content["ename"] == error, content
            wait_until(lambda ended=pid: not _exists(ended))
            content, shown = client.run(code)
            assert content["status"] == "ok", content
            assert "15.75 GiB" in shown, shown
            pid = _printed(client.run("print('pid', libtpu._child()._process.pid)"))
    finally:
        client.close()


def _printed(ran: tuple[dict[str, Any], str]) -> int:
    content, shown = ran
    assert content["status"] == "ok", content
    return int(shown.rpartition("pid ")[2].split()[0])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
