"""A virtual Pod: a virtual TPU whose hosts are worker processes, on this or other machines."""

from __future__ import annotations

import atexit
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from tpunb._util.deadline import Deadline
from tpunb._util.secret_masking import mask
from tpunb._util.units import counted
from tpunb.connection.cluster.local_workers import LocalWorkers
from tpunb.connection.cluster.probe import Reason, Unreachable, Worker, check_all, responds
from tpunb.connection.cluster.worker import version_of
from tpunb.connection.plan import Plan
from tpunb.errors import ConnectError
from tpunb.tpu.types import Accelerator, accelerator, generic_accelerator
from tpunb.virtual.tensorflow.import_tensorflow import import_tensorflow

if TYPE_CHECKING:
    from tpunb.connection.cluster.join import Joined

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_CUTS = 0.1


class ExitGuard:
    """A guard that ends TensorFlow's wait for silent workers at the end of the process.

    There TensorFlow waits without a time limit for all unfinished work of its workers. The guard
    checks them in the meantime, and closes the connections once a worker does not answer. Its
    thread starts in advance, because no thread can start at the end of the process.

    Args:
        addresses: The workers' addresses.
        peers: Their IP addresses and ports.
    """

    def __init__(self, addresses: Sequence[str], peers: Collection[tuple[str, int]]) -> None:
        self._addresses, self._peers = tuple(addresses), peers
        self._wanted = threading.Event()
        self._is_over = False
        threading.Thread(target=self._run, name="tpunb-exit", daemon=True).start()

    def watch(self) -> None:
        """Begin the watch, because the process is ending."""
        self._wanted.set()

    def close(self) -> None:
        """End the watch, because nothing is left to wait for."""
        self._is_over = True
        self._wanted.set()

    def _run(self) -> None:
        from tpunb.connection.cluster.hanging_calls import cut

        self._wanted.wait()
        while not self._is_over and all(map(responds, self._addresses)):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        while not self._is_over:  # TensorFlow connects again to a worker that it cannot reach
            cut(self._peers)
            time.sleep(_SECONDS_BETWEEN_CUTS)


_FIXES: dict[Reason, str] = {
    "address": "Write addresses as host:port, separated by commas.",
    "name": "Check the name of the host, or give its IP address.",
    "refused": "Start the worker there: tpunb worker --cores {cores} --port {port}.",
    "filtered": "Let this machine and the other workers through the firewall of {host}.",
    "timeout": "Stop that process and restart the worker: tpunb worker --cores {cores} "
    "--port {port}.",
    "not_tensorflow": "Give the port of a `tpunb worker`.",
    "broken": "Restart the worker: tpunb worker --cores {cores} --port {port}.",
}

_NAMED = 4  # workers that an error's message names; `tried` has all
_AT_LEAST = 0.5  # seconds for the last step, however long the earlier steps took

_LOST = (
    "TensorFlow makes its devices again when it first connects to workers. Make variables from "
    "before this connection again."
)


@dataclasses.dataclass
class Pod:
    """The workers of a virtual Pod, connected to TensorFlow.

    Attributes:
        accelerator: The TPU that the workers form.
        joined: TensorFlow's connection to them.
        local: The processes, if they were started for this Pod.
        notes: Sentences to show to the user.
    """

    accelerator: Accelerator
    joined: Joined
    local: LocalWorkers | None = None
    notes: tuple[str, ...] = ()
    _guard: ExitGuard | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The workers' addresses."""
        return self.joined.addresses

    def lost(self) -> tuple[str, ...]:
        """Return the addresses of workers that have gone or restarted."""
        return self.joined.lost()

    def cut(self) -> None:
        """Close the connections to the workers. TensorFlow opens them again."""
        from tpunb.connection.cluster.hanging_calls import cut_off

        cut_off(self.joined.peers)

    def close(self) -> None:
        """Disconnect from the workers, and end those that were started for the Pod."""
        atexit.unregister(self.leave_at_exit)
        if self._guard is not None:
            self._guard.close()
        try:
            self.joined.leave()
        finally:
            if self.local is not None:
                self.local.close()

    def end_with_process(self) -> None:
        """Register `leave_at_exit` to run before the exit handlers registered so far.

        Call it again after making the strategy, which registers a wait for the workers without
        a time limit.
        """
        if self._guard is None:
            self._guard = ExitGuard(self.addresses, self.joined.peers)
        atexit.unregister(self.leave_at_exit)
        atexit.register(self.leave_at_exit)

    def leave_at_exit(self) -> None:
        """Disconnect before the process exits. The Pod's own workers end with the process.

        TensorFlow calls its workers once more at the very end, and would log errors.
        """
        from tpunb.connection.cluster.hanging_calls import unlocked
        from tpunb.connection.cluster.join import skip_exit_wait

        gone = self.local is not None and self.local.ended()
        if not gone and all(map(responds, self.addresses)):
            if self._guard is not None:
                self._guard.watch()  # a worker may freeze from now on
            if self.local is not None:
                with unlocked():
                    self.joined.disconnect()
            return
        skip_exit_wait()
        if self.local is not None:
            self.local.close(grace=0.5)
        else:
            self.cut()


def open_pod(plan: Plan, say: Callable[[str], None] | None = None) -> Pod:
    """Start or check the workers, and connect TensorFlow to them.

    Args:
        plan: The resolved request, with addresses of workers or a number of workers to start.
        say: Called with a description of each step that takes seconds.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: A worker does not answer, or does not fit.
    """
    request = plan.request
    deadline = Deadline(request.timeout)
    if request.addresses:
        return _connected(plan, request.addresses, None, deadline)
    tpu = _layout(plan, request.started or 0, None)
    local = LocalWorkers(tpu.num_hosts, tpu.devices_per_host, timeout=request.timeout, say=say)
    try:
        pod = _connected(plan, local.addresses, local, deadline)
    except BaseException:
        local.close()
        raise
    pod.end_with_process()
    return pod


def _connected(
    plan: Plan, addresses: Sequence[str], local: LocalWorkers | None, deadline: Deadline
) -> Pod:
    answers = check_all(addresses, timeout=max(_AT_LEAST, deadline.left))
    tried = [
        f"{answer.address}: {answer}"
        if isinstance(answer, Unreachable)
        else f"{answer.address} answers with {counted(len(answer.devices) - 1, 'core')}"
        for answer in answers
    ]
    workers = [answer for answer in answers if isinstance(answer, Worker)]
    if failed := [answer for answer in answers if isinstance(answer, Unreachable)]:
        raise _unreachable(failed, plan, tried)
    with deadline.paused():
        import_tensorflow()
    import tensorflow as tf

    from tpunb.connection.cluster.join import runs_without_workers

    tpu = _layout(plan, len(workers), workers)
    for worker in workers:
        _refuse_unfit(worker, tpu, tf.__version__, tried)
    many = counted(len(workers), "worker")
    hosts = (
        f"Its hosts are the {many} at the given addresses."
        if local is None
        else f"Its hosts are {many} on this machine. Their ports are open to the network without "
        "a password while the connection lasts."
    )
    notes = (hosts, *((_LOST,) if runs_without_workers() else ()))
    return Pod(tpu, _joined(workers, deadline, tried), local, notes)


def _joined(workers: Sequence[Worker], deadline: Deadline, tried: list[str]) -> Joined:
    import tensorflow as tf

    from tpunb.connection.cluster.hanging_calls import StillWaitingError
    from tpunb.connection.cluster.join import join

    begin = time.monotonic()
    cause: Exception
    try:
        return join(workers, max(_AT_LEAST, deadline.left))
    except StillWaitingError as error:
        cause, spent = error, time.monotonic() - begin
        why = (
            f"one of them did not answer TensorFlow within {spent:.1f} s, the rest of the time "
            "limit"
        )
        fix = "Choose a longer --timeout, or restart the workers and connect again"
        last = f"connecting TensorFlow: {why}"
    except tf.errors.OpError as error:
        cause, why = error, mask(str(error))
        fix = "Restart the workers and connect again"
        last = f"{type(error).__name__}: {why}"
    raise ConnectError(
        f"The workers answered, but TensorFlow could not connect to them: {why}",
        fix=f"{fix}. If that fails too, restart the kernel.",
        tried=(*tried, last),
    ) from cause


def _unreachable(failed: Sequence[Unreachable], plan: Plan, tried: list[str]) -> ConnectError:
    first = failed[0]
    host, _, port = first.address.rpartition(":")
    tpu = accelerator(plan.tpu) if plan.tpu else None
    fix = _FIXES[first.reason].format(
        host=host, port=port, cores=tpu.devices_per_host if tpu else 8
    )
    message = f"The worker at {first.address} cannot be reached: {first}."
    if len(failed) > 1:
        named = "; ".join(f"{worker.address}: {worker}" for worker in failed[:_NAMED])
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        message = f"{len(failed)} of {len(tried)} workers cannot be reached ({named}{more})."
        fix = f"For {first.address}: {fix}"
    return ConnectError(message, fix=fix, tried=tried)


def _layout(plan: Plan, count: int, workers: Sequence[Worker] | None) -> Accelerator:
    """Return the TPU that the workers form.

    Args:
        plan: The resolved request, which may have a type or a number of cores.
        count: The number of workers.
        workers: The workers; None before they are started.
    """
    if not plan.tpu:
        cores = min((len(worker.devices) - 1 for worker in workers), default=0) if workers else 8
        if cores < 1:
            raise ConnectError(
                "A worker has no cores.", fix="Start it with `tpunb worker --cores 8`."
            )
        return generic_accelerator(count, cores)
    tpu = accelerator(plan.tpu)
    if count in {0, tpu.num_hosts}:  # 0 means one worker for each host
        return tpu
    if tpu.family == "generic" and tpu.num_devices % count == 0:
        return generic_accelerator(count, tpu.num_devices // count)
    hosts, cores = tpu.num_hosts, tpu.devices_per_host
    raise ConnectError(
        f"A {tpu.name} has {counted(hosts, 'host')}, but there {'is' if count == 1 else 'are'} "
        f"{counted(count, 'worker')}.",
        fix=f"Give one worker for each host, {hosts} with {counted(cores, 'core')} each. Or omit "
        "the type, to use all cores of the workers.",
    )


def _refuse_unfit(worker: Worker, tpu: Accelerator, version: str, tried: list[str]) -> None:
    """Raise an error if a worker has too few cores or another minor release of TensorFlow.

    The release is known only for a `tpunb worker`.
    """
    cores = len(worker.devices) - 1
    if cores < tpu.devices_per_host:
        raise ConnectError(
            f"The worker at {worker.address} has {counted(cores, 'core')}, but a host of a "
            f"{tpu.name} has {tpu.devices_per_host}.",
            fix=f"Restart the worker: tpunb worker --cores {tpu.devices_per_host}.",
            tried=tried,
        )
    theirs = version_of(worker.devices[0])
    if theirs is None or theirs.split("_")[:2] == version.split(".")[:2]:
        return
    shown = ".".join(theirs.split("_")[:3])
    raise ConnectError(
        f"The worker at {worker.address} runs TensorFlow {shown}, but this process runs {version}. "
        "The versions must be equal.",
        fix=f"Install TensorFlow {version} on the worker's machine, or {shown} on this machine.",
        tried=tried,
    )
