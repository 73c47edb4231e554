"""TensorFlow's connection to workers, a virtual Pod's and a TPU's.

TensorFlow has two ways to other workers. Its public one, `experimental_connect_to_cluster`,
begins anew: devices of the cluster before are gone, and a process that then touches a
variable or a tensor on one of them crashes. An update of the cluster keeps what it needs
to say that such a value is lost, so it is taken where there is a cluster already.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import context
from tpunb.virtual.devices import WORKER_JOB, prepare

# A call to a worker that has gone fails, rather than to wait for its return for ever.
_FAIL_FAST = "GRPC_FAIL_FAST"
# The stream of operations to a worker that has gone swallows them; single calls fail. A TPU's
# worker is farther away and rather freezes than goes: there the stream is what can be cut.
_STREAMING = "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"
_LOCAL_JOB = "localhost"
# TensorFlow tries a worker that was away again once a second.
_PATIENCE = 5.0
_PAUSE = 0.1


def started() -> bool:
    """Whether TensorFlow runs in this process and is connected to no cluster.

    What variables it holds then is lost by connecting: TensorFlow makes its own devices
    anew as well, and an assignment to a variable on an earlier one has no effect.
    """
    return context.context()._context_handle is not None and context.get_server_def() is None


_generation = 0
_joined = False  # whether TensorFlow has been connected to a cluster


def connect(addresses: Sequence[str], *, coordinated: bool = False) -> int:
    """Makes the devices of workers known to TensorFlow; values on earlier workers are lost.

    TensorFlow waits without end for a worker that accepts connections and does not
    answer: all have to be asked before.

    Args:
        addresses: The workers, as `host:port`.
        coordinated: Whether TensorFlow's coordination service runs on the first worker, as
            it does on a TPU's.

    Returns:
        What `disconnect` and `is_current` take.
    """
    global _generation
    os.environ.setdefault(_FAIL_FAST, "true")
    if not coordinated:
        os.environ.setdefault(_STREAMING, "false")
    _start(coordinated)
    _generation += 1
    if context.get_server_def() is None:
        _connect_first(addresses)
    else:
        _update(addresses)
    return _generation


def give_up() -> int:
    """Ends what `connect` has begun and did not come to the end of.

    Returns:
        What `disconnect` takes, if the cluster was changed rather than joined for the first time.
    """
    if not _joined:
        # TensorFlow remembers what it failed to connect to as if it had not failed.
        context.context()._server_def = None
    return _generation


def is_current(generation: int) -> bool:
    """Whether TensorFlow is connected to what `connect` has connected it to, and to no others."""
    return generation == _generation and context.get_server_def() is not None


def disconnect(generation: int) -> None:
    """Forgets workers: what is on them cannot be asked for any more, and says so.

    Args:
        generation: What `connect` returned; what was connected to since stays.
    """
    global _generation
    if is_current(generation):
        _generation += 1
        _update(())


def expect_no_farewell() -> None:
    """Keeps TensorFlow from waiting for its workers at the end of the process."""
    atexit.unregister(context.async_wait)


def _start(coordinated: bool) -> None:
    """Starts TensorFlow, so that it connects at once and not at its next use."""
    running = context.context()
    if running._context_handle is not None:
        return
    prepare()
    if coordinated:
        # What TensorFlow would set when it connects, and cannot set once it has started.
        leader = f"/job:{WORKER_JOB}/task:0"
        running.configure_coordination_service("standalone", leader, enable_health_check=False)
    running.ensure_initialized()


def _connect_first(addresses: Sequence[str]) -> None:
    global _joined
    here = f"{_own_host(addresses)}:{_free_port()}"
    cluster = tf.train.ClusterSpec({WORKER_JOB: list(addresses), _LOCAL_JOB: [here]})
    tf.config.experimental_connect_to_cluster(cluster)
    _joined = True


def _update(addresses: Sequence[str]) -> None:
    server_def = context.get_server_def()
    for job in [job for job in server_def.cluster.job if job.name == WORKER_JOB]:
        server_def.cluster.job.remove(job)
    if addresses:
        job = server_def.cluster.job.add(name=WORKER_JOB)
        job.tasks.update(enumerate(addresses))
        _move(server_def, _own_host(addresses))
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            context.update_server_def(server_def)
            return
        except tf.errors.UnavailableError:
            # The workers have just been asked, and have answered.
            if not addresses or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def _move(server_def: Any, host: str) -> None:
    """Tells workers another address of this process, which keeps its port."""
    for job in server_def.cluster.job:
        if job.name == _LOCAL_JOB:
            job.tasks[0] = f"{host}:{job.tasks[0].rpartition(':')[2]}"


def _own_host(addresses: Sequence[str]) -> str:
    """The address under which workers find this process.

    They call it: for what Python functions in datasets give, and for what is saved.
    TensorFlow says `localhost`, which workers on other machines take for themselves.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, target = found[0]
            with socket.socket(family, kind, protocol) as asking:
                asking.connect(target)  # sends nothing
                own = str(asking.getsockname()[0])
            if not own.startswith("127.") and own != "::1":
                return f"[{own}]" if ":" in own else own
    return "localhost"


def _free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("", 0))
        return int(asking.getsockname()[1])
