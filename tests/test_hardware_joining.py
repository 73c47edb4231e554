"""TensorFlow connected to real workers that freeze, die and come back; each in a new process.

TensorFlow's devices change for good when it connects, which is no business of other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from counterparts.children import WITHOUT_KERAS

pytestmark = pytest.mark.timeout(180)

PRELUDE = """
import _thread, os, sys, threading, time
import tensorflow as tf
import tpunb
from counterparts.ports import Proxy, refusing
from counterparts.workers import tensorflow_server, tpu_worker
from tpunb import hardware
from tpunb.errors import ConnectError
from tpunb.joining import join
from tpunb.reaching import ask_all
from tpunb.virtual.devices import prepare
from tpunb.virtual._tensorflow import context

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
THERE = "/job:worker/replica:0/task:0/device:CPU:0"

prepare()


def joined(worker):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("grpc://" + worker.address)
    hardware._joined[resolver] = join(ask_all([worker.address], timeout=20), 20, tpu=True)
    assert tf.add(1, 1).device == THERE
    return resolver


def is_alone(*, waiting=False):
    server_def = context.get_server_def()
    jobs = [] if server_def is None else [job.name for job in server_def.cluster.job]
    assert jobs in ([], ["localhost"]), jobs
    assert tf.add(1, 1).device == HERE
    assert all("worker" not in device.name for device in tf.config.list_logical_devices())
    deadline = time.monotonic() + 20
    while not waiting and any(thread.name == "tpunb" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def simulates():
    with tpunb.connect(simulate="v5e-8") as connection:
        ones = connection.strategy.run(tf.function(lambda: tf.constant(1.0)))
        assert float(connection.strategy.reduce("SUM", ones, axis=None)) == 8


def number(error):
    found = tpunb.explain(error)
    return found.number if found else None


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def refused(address, timeout, **more):
    begin = time.monotonic()
    error = raised(lambda: tpunb.connect("grpc://" + address, timeout=timeout))
    assert isinstance(error, ConnectError), error
    assert time.monotonic() - begin < 2 * timeout + 2
    assert number(error) == 6, error
    is_alone(**more)
    return str(error)
"""


def run(scenario: str) -> None:
    """Runs a scenario in a process of its own, which has to end well and soon."""
    places = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    path = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS + PRELUDE + textwrap.dedent(scenario)],
        env={**os.environ, "PYTHONPATH": path, "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_initialising_that_never_ends() -> None:
    """The first time limit ends it, then the stop button; each leaves a process that works."""
    run(
        """
        kept = tf.Variable(5.0)
        with tpu_worker() as worker:
            assert "initialising it was not done in 3 s" in refused(worker.address, 3)
            simulates()
            threading.Timer(3, _thread.interrupt_main).start()
            begin = time.monotonic()
            try:
                tpunb.connect("grpc://" + worker.address, timeout=60)
            except KeyboardInterrupt:
                assert time.monotonic() - begin < 8
            else:
                raise AssertionError("it was not interrupted")
            is_alone()
        assert float(kept.assign_add(1)) == 6
        simulates()
        """
    )


def test_connecting_that_never_ends() -> None:
    """The worker answers those who ask, and not TensorFlow when that connects."""
    run(
        """
        with tpu_worker() as worker, Proxy(worker.address, stop_at=b"CreateContext") as proxy:
            assert "Restart the kernel" in refused(proxy.address, 3, waiting=True)
            assert proxy.silent.is_set()
            simulates()
            worker.kill()
            simulates()
        # TensorFlow waits for such a context when the process ends, and has no time limit.
        sys.stderr.flush()
        os._exit(0)
        """
    )


def test_a_worker_that_dies_and_comes_back() -> None:
    run(
        """
        with tensorflow_server() as worker, tensorflow_server() as other:
            here = tf.Variable(5.0, name="here")
            resolver = joined(worker)
            error = raised(lambda: tf.tpu.experimental.initialize_tpu_system(resolver))
            assert number(error) == 3, error
            assert hardware.lost(resolver) == ()
            there = tf.Variable(1.0)
            add = tf.function(lambda: there + 1)
            numbers = iter(tf.data.Dataset.range(9))
            assert (float(add()), int(next(numbers))) == (2, 0)

            worker.kill()
            assert hardware.lost(resolver) == (worker.address,)
            begin = time.monotonic()
            assert number(raised(lambda: there.assign_add(1).numpy())) == 14
            assert time.monotonic() - begin < 30

            worker.restart()
            assert hardware.lost(resolver) == (worker.address,)
            again = joined(worker)
            assert hardware.lost(again) == ()
            for lost in (there.numpy, lambda: add().numpy(), lambda: next(numbers)):
                assert number(raised(lost)) == 14
            hardware.disconnect(resolver)  # the old one: the new one stays
            assert tf.add(1, 1).device == THERE
            new = tf.Variable(3.0)
            assert float(tf.function(lambda: new + 1)()) == 4

            third = joined(other)
            for lost in (there.numpy, new.numpy, lambda: add().numpy()):
                assert number(raised(lost)) == 14
            hardware.disconnect(third)
            hardware.disconnect(again)
            is_alone()
            assert float(here.assign_add(1)) == 6
        simulates()
        """
    )


@pytest.mark.parametrize("what", ["kill", "freeze"])
def test_disconnecting_from_a_worker_that_is_gone(what: str) -> None:
    run(
        f"""
        with tensorflow_server() as worker:
            resolver = joined(worker)
            there = tf.Variable(1.0)
            worker.{what}()
            begin = time.monotonic()
            hardware.disconnect(resolver)
            assert time.monotonic() - begin < 6
            is_alone()
        simulates()
        """
    )


def test_an_operation_on_a_frozen_worker_ends_with_its_connection() -> None:
    run(
        """
        from tpunb.virtual.waiting import cut

        with tensorflow_server() as worker:
            resolver = joined(worker)
            peers = hardware._joined[resolver].peers
            there = tf.Variable(1.0)
            worker.freeze()
            threading.Timer(1, cut, [peers]).start()
            assert number(raised(lambda: there.assign_add(1).numpy())) == 14
            hardware.disconnect(resolver)
            is_alone()
        """
    )
