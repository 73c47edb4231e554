"""TensorFlow connected to real workers that freeze, die and restart, in separate processes.

Connecting changes TensorFlow's devices for good, which must not affect other tests.
"""

from __future__ import annotations

import json
import re

import pytest
from counterparts.children import WITHOUT_KERAS, run_code
from support.tiers import THOROUGH

pytestmark = pytest.mark.tensorflow

PRELUDE = """
import _thread, json, os, sys, threading, traceback
import tensorflow as tf
import tpunb
from counterparts.ports import Proxy, refusing
from counterparts.workers import tensorflow_server, tpu_worker
from support.patience import PATIENCE, at_last, wait_until
from tpunb.tensorflow.connection import hardware
from tpunb.errors import ConnectError
from tpunb.tensorflow.connection.cluster.join import join
from tpunb.tensorflow.connection.cluster.probe import check_all
from tpunb.tensorflow.virtual.runtime.devices import prepare
from tpunb.tensorflow.virtual.private_names import context

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
THERE = "/job:worker/replica:0/task:0/device:CPU:0"

prepare()


def joined(worker):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("grpc://" + worker.address)
    hardware._joined[resolver] = join(check_all([worker.address], timeout=PATIENCE), PATIENCE)
    assert tf.add(1, 1).device == THERE
    return resolver


def is_alone(*, waiting=False):
    server_def = context.get_server_def()
    jobs = [] if server_def is None else [job.name for job in server_def.cluster.job]
    assert jobs in ([], ["localhost"]), jobs
    assert tf.add(1, 1).device == HERE
    assert all("worker" not in device.name for device in tf.config.list_logical_devices())
    if not waiting:
        wait_until(lambda: all(thread.name != "tpunb" for thread in threading.enumerate()))


def is_there(resolver):
    # A busy machine may need more than the second that it is given.
    wait_until(lambda: hardware.lost(resolver) == ())


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
    error = raised(lambda: tpunb.connect("grpc://" + address, timeout=timeout))
    assert isinstance(error, ConnectError), error
    assert number(error) == 6, error
    is_alone(**more)
    return str(error)
"""


SCENARIOS = """
kept = tf.Variable(5.0)


def initialising_that_never_ends(worker, other):
    # The first time limit ends it, then the stop button; each leaves a process that works.
    with tpu_worker() as tpu:
        at_last(
            lambda limit: refused(tpu.address, limit),
            lambda said: "initialising it was not done in" in said,
            limit=3,
        )
        simulates()
        threading.Timer(3, _thread.interrupt_main).start()
        try:
            tpunb.connect("grpc://" + tpu.address, timeout=6000)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it was not interrupted")
        is_alone()
    assert float(kept.assign_add(1)) == 6


def a_worker_that_dies_and_comes_back(worker, other):
    here = tf.Variable(5.0, name="here")
    resolver = joined(worker)
    error = raised(lambda: tf.tpu.experimental.initialize_tpu_system(resolver))
    assert number(error) == 3, error
    is_there(resolver)
    there = tf.Variable(1.0)
    add = tf.function(lambda: there + 1)
    numbers = iter(tf.data.Dataset.range(9))
    assert (float(add()), int(next(numbers))) == (2, 0)

    worker.kill()
    assert hardware.lost(resolver) == (worker.address,)
    assert number(raised(lambda: there.assign_add(1).numpy())) == 14

    worker.restart()
    assert hardware.lost(resolver) == (worker.address,)
    again = joined(worker)
    is_there(again)
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


def an_operation_on_a_frozen_worker_ends_with_its_connection(worker, other):
    from tpunb.tensorflow.connection.cluster.hanging_calls import cut

    resolver = joined(other)
    peers = hardware._joined[resolver].peers
    there = tf.Variable(1.0)
    other.freeze()
    threading.Timer(1, cut, [peers]).start()
    assert number(raised(lambda: there.assign_add(1).numpy())) == 14
    hardware.disconnect(resolver)
    other.go_on()


def disconnecting_from_a_worker_that_is_frozen(worker, other):
    resolver = joined(other)
    there = tf.Variable(1.0)
    other.freeze()
    hardware.disconnect(resolver)


def disconnecting_from_a_worker_that_is_dead(worker, other):
    resolver = joined(worker)
    there = tf.Variable(1.0)
    worker.kill()
    hardware.disconnect(resolver)


with tensorflow_server() as worker, tensorflow_server() as other:
    found = {}
    for name in sys.argv[1:]:
        try:
            globals()[name](worker, other)
            is_alone()
            simulates()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
print(json.dumps(found))
"""


def run(code: str, *arguments: str) -> str:
    """Run code in a separate process that must succeed, and return its output."""
    process = run_code(WITHOUT_KERAS + PRELUDE + code, *arguments, no_proxy="*")
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout


NAMES = re.findall(r"^def (\w+)\(worker, other\)", SCENARIOS, re.MULTILINE)


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Run all scenarios one after another in a process, and return the failure of each."""
    failed: dict[str, str] = json.loads(run(SCENARIOS, *NAMES).splitlines()[-1])
    return failed


@THOROUGH
@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_in_a_shared_process(failures: dict[str, str], name: str) -> None:
    assert failures[name] == ""


def test_connecting_that_never_ends() -> None:
    """The worker answers probes, but not TensorFlow's connection."""
    run(
        """
with tpu_worker() as worker, Proxy(worker.address, stop_at=b"CreateContext") as proxy:
    said = at_last(
        lambda limit: refused(proxy.address, limit, waiting=True),
        lambda _: proxy.silent.is_set(),
        limit=3,
    )
    assert "Restart the kernel" in said
    assert proxy.silent.is_set()
    simulates()
    worker.kill()
    simulates()
# TensorFlow waits for such a context when the process ends, and has no time limit.
sys.stderr.flush()
os._exit(0)
"""
    )
