"""A virtual Pod: a virtual TPU whose hosts are worker processes, here or elsewhere."""

from __future__ import annotations

import atexit
import dataclasses
import time
from collections.abc import Callable, Sequence

from tpunb.accelerators import Accelerator, accelerator, generic_accelerator
from tpunb.errors import ConnectError
from tpunb.joining import Joined, join
from tpunb.masking import mask
from tpunb.processes import LocalWorkers
from tpunb.quiet import import_tensorflow
from tpunb.reaching import Reason, Unreachable, Worker, ask_all, is_awake
from tpunb.request import Request
from tpunb.worker import version_of

__all__ = ["Pod", "open_pod"]

_MENDS: dict[Reason, str] = {
    "address": "Write addresses as host:port, separated by commas.",
    "name": "Check the name of the host, or give its IP address.",
    "refused": "Start it there: tpunb worker --cores {cores} --port {port}.",
    "dropped": "Let this machine, and the other workers, through the firewall of {host}.",
    "mute": "Stop that process and start the worker anew: tpunb worker --cores {cores} "
    "--port {port}.",
    "foreign": "Give the port of a `tpunb worker`.",
    "broken": "Start the worker anew: tpunb worker --cores {cores} --port {port}.",
}

_NAMED = 4  # workers in an error's message; all are in what was tried
_AT_LEAST = 0.5  # seconds for what comes last, when those before have taken their time

_LOST = (
    "TensorFlow makes its devices anew where it connects to workers for the first time: variables "
    "that this process had before have to be made again."
)


@dataclasses.dataclass
class Pod:
    """The workers of a virtual Pod, to which TensorFlow is connected.

    Attributes:
        accelerator: The TPU that they make up.
        joined: TensorFlow's connection to them.
        local: The processes, if they were started for this Pod.
        notes: Sentences that the user should read.
    """

    accelerator: Accelerator
    joined: Joined
    local: LocalWorkers | None = None
    notes: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The workers' addresses."""
        return self.joined.addresses

    def lost(self) -> tuple[str, ...]:
        """The addresses of the workers that are gone, or have been started anew."""
        return self.joined.lost()

    def close(self) -> None:
        """Disconnects from the workers, and ends those that were started for the Pod."""
        atexit.unregister(self.leave_at_exit)
        try:
            self.joined.leave()
        finally:
            if self.local is not None:
                self.local.close()

    def end_with_process(self) -> None:
        """Has the Pod left at the end of the process, before what was registered until now.

        To be called again when the strategy is made: it has TensorFlow wait for the workers
        at the end, without a time limit.
        """
        atexit.unregister(self.leave_at_exit)
        if self.local is not None:
            atexit.register(self.leave_at_exit)

    def leave_at_exit(self) -> None:
        """Disconnects before the process ends, and its workers with it.

        TensorFlow asks for its workers once more at the very end, and would complain.
        """
        from tpunb.virtual import cluster

        if self.local is None:
            return
        # No thread can be started any more that would end a wait: only who speaks is called.
        if not self.local.ended() and all(map(is_awake, self.addresses)):
            cluster.disconnect(self.joined.generation)
        else:
            cluster.expect_no_farewell()
            self.local.close(grace=0.5)


def open_pod(request: Request, say: Callable[[str], None] | None = None) -> Pod:
    """Starts or asks the workers that a request wants, and connects TensorFlow to them.

    Args:
        request: What to connect to; it has `workers`, or a number of `local_workers`.
        say: Is told what is being done, where it takes seconds.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: A worker does not answer, or does not fit.
    """
    deadline = time.monotonic() + request.timeout
    if request.workers:
        return _connected(request, request.workers, None, deadline)
    tpu = _layout(request, request.local_workers or 0, None)
    local = LocalWorkers(tpu.num_hosts, tpu.devices_per_host, timeout=request.timeout, say=say)
    try:
        pod = _connected(request, local.addresses, local, deadline)
    except BaseException:
        local.close()
        raise
    pod.end_with_process()
    return pod


def _connected(
    request: Request, addresses: Sequence[str], local: LocalWorkers | None, deadline: float
) -> Pod:
    workers, tried = _answers(request, addresses, deadline)
    begin = time.monotonic()
    import_tensorflow()  # what it takes is not the workers' time
    deadline += time.monotonic() - begin
    import tensorflow as tf

    from tpunb.virtual import cluster

    tpu = _layout(request, len(workers), workers)
    for worker in workers:
        _refuse_few_cores(worker, tpu, tried)
        _refuse_version(worker, tf.__version__, tried)
    notes = (_hosts(len(workers), local is not None), *((_LOST,) if cluster.started() else ()))
    return Pod(tpu, _joined(workers, deadline, tried), local, notes)


def _joined(workers: Sequence[Worker], deadline: float, tried: list[str]) -> Joined:
    import tensorflow as tf

    from tpunb.virtual.waiting import StillWaitingError

    begin = time.monotonic()
    try:
        return join(workers, max(_AT_LEAST, deadline - begin))
    except StillWaitingError as error:
        why = (
            "one of them has not answered TensorFlow itself in "
            f"{time.monotonic() - begin:.1f} s, the rest of the time limit"
        )
        mend = "Give a longer --timeout, or start the workers anew and connect again"
        raise _could_not(why, mend, (*tried, f"connecting TensorFlow: {why}")) from error
    except tf.errors.OpError as error:
        why = mask(str(error))
        mend = "Start the workers anew and connect again"
        raise _could_not(why, mend, (*tried, f"{type(error).__name__}: {why}")) from error


def _could_not(why: str, mend: str, tried: Sequence[str]) -> ConnectError:
    return ConnectError(
        f"The workers answered, and TensorFlow could not connect to them: {why}",
        mend=f"{mend}; if that fails too, restart the kernel.",
        tried=tried,
    )


def _hosts(count: int, local: bool) -> str:
    """What the TPU's hosts are, for the summary."""
    if not local:
        return f"Its hosts are the {_many(count, 'worker')} that were given."
    return (
        f"Its hosts are {_many(count, 'worker')} on this machine, whose ports are open to the "
        "network without a password for as long as the connection lasts."
    )


def _answers(
    request: Request, addresses: Sequence[str], deadline: float
) -> tuple[list[Worker], list[str]]:
    """What the workers answer; all have to."""
    answers = ask_all(addresses, timeout=max(_AT_LEAST, deadline - time.monotonic()))
    tried = [
        f"{answer.address}: {answer}"
        if isinstance(answer, Unreachable)
        else f"{answer.address} answers with {_many(len(answer.devices) - 1, 'core')}"
        for answer in answers
    ]
    failed = [answer for answer in answers if isinstance(answer, Unreachable)]
    if failed:
        raise _unreachable(failed, request, tried)
    return [answer for answer in answers if isinstance(answer, Worker)], tried


def _unreachable(failed: Sequence[Unreachable], request: Request, tried: list[str]) -> ConnectError:
    first = failed[0]
    host, _, port = first.address.rpartition(":")
    tpu = accelerator(request.tpu) if request.tpu else None
    mend = _MENDS[first.reason].format(
        host=host, port=port, cores=tpu.devices_per_host if tpu else 8
    )
    message = f"The worker at {first.address} cannot be reached: {first}."
    if len(failed) > 1:
        named = "; ".join(f"{one.address}: {one}" for one in failed[:_NAMED])
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        message = f"{len(failed)} of {len(tried)} workers cannot be reached ({named}{more})."
        mend = f"For {first.address}: {mend}"
    return ConnectError(message, mend=mend, tried=tried)


def _layout(request: Request, count: int, workers: Sequence[Worker] | None) -> Accelerator:
    """The TPU that so many workers make up.

    Args:
        request: Says of which type it is, or how many cores it has; or nothing.
        count: How many workers there are.
        workers: What they have answered; None before they are started.
    """
    if not request.tpu:
        cores = min((len(worker.devices) - 1 for worker in workers), default=0) if workers else 8
        if cores < 1:
            raise ConnectError(
                "A worker has no cores.", mend="Start it with `tpunb worker --cores 8`."
            )
        return generic_accelerator(count, cores)
    tpu = accelerator(request.tpu)
    if count in {0, tpu.num_hosts}:  # 0: as many as it has hosts
        return tpu
    if tpu.family == "generic" and tpu.num_devices % count == 0:
        return generic_accelerator(count, tpu.num_devices // count)
    hosts, cores = tpu.num_hosts, tpu.devices_per_host
    raise ConnectError(
        f"A {tpu.name} has {_many(hosts, 'host')}, and {_many(count, 'worker')} cannot be them.",
        mend=f"Give one worker for each host, {hosts} with {_many(cores, 'core')} each; or leave "
        "out the type, for all of the workers' cores.",
    )


def _refuse_few_cores(worker: Worker, tpu: Accelerator, tried: list[str]) -> None:
    cores = len(worker.devices) - 1
    if cores < tpu.devices_per_host:
        raise ConnectError(
            f"The worker at {worker.address} has {_many(cores, 'core')}; a host of this TPU "
            f"({tpu.name}) has {tpu.devices_per_host}.",
            mend=f"Start it anew: tpunb worker --cores {tpu.devices_per_host}.",
            tried=tried,
        )


def _refuse_version(worker: Worker, version: str, tried: list[str]) -> None:
    """Fails where a `tpunb worker` has another minor release; others do not tell theirs."""
    theirs = version_of(worker.devices[0])
    if theirs is None or _same_minor(theirs, version):
        return
    shown = ".".join(theirs.split("_")[:3])
    raise ConnectError(
        f"The worker at {worker.address} runs TensorFlow {shown} and this process {version}, and "
        "only equal versions work together.",
        mend=f"Install TensorFlow {version} where the worker runs, or {shown} here.",
        tried=tried,
    )


def _same_minor(theirs: str, ours: str) -> bool:
    return theirs.split("_")[:2] == ours.split(".")[:2]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
