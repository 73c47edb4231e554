"""A TPU's workers: their addresses and health checks."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb._util.secret_masking import mask
from tpunb._util.units import counted
from tpunb.errors import ConnectError
from tpunb.tensorflow.connection.cluster.probe import (
    Reason,
    Unreachable,
    Worker,
    check_all,
    host_and_port,
)
from tpunb.tensorflow.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.tensorflow.connection.hardware.cloud import Node
from tpunb.tpu.default_tpu import WORKER_PORT

_PREFIX = "grpc://"

_FIXES: dict[Reason, str] = {
    "address": "Write it as %tpu_connect grpc://HOST:8470. Separate several addresses by commas.",
    "name": "Check the name, or give the host's IP address: %tpu_connect grpc://10.0.0.2:{port}.",
    "refused": "Check the address, and that the TPU is READY: gcloud compute tpus tpu-vm list. "
    "On a TPU VM itself, connect with `%tpu_connect local`.",
    "filtered": "Connect from a machine in the TPU's network, or let this machine through: gcloud "
    "compute firewall-rules create tpu-workers --network=NETWORK --direction=INGRESS "
    "--allow=tcp:{port} --source-ranges=THIS_MACHINE/32. To wait longer: --timeout {longer:g}.",
    "timeout": "The worker may be starting or out of memory. Wait, or stop and start the TPU. Then "
    "connect again. To wait longer: --timeout {longer:g}.",
    "not_tensorflow": f"Check the port: a TPU's workers listen on {WORKER_PORT}.",
    "broken": "Stop and start the TPU, then connect again.",
}
_OF_NODE: dict[Reason, str] = {
    "refused": "The TPU's own TensorFlow server is not running. On a TPU VM, run the notebook on "
    "the VM (gcloud compute tpus tpu-vm ssh) and connect with `%tpu_connect local`. A slice of "
    "several hosts needs a runtime version tpu-vm-tf-...-pod.",
    "timeout": "Stop the TPU and start it again: {stop} && {start}. To wait longer: "
    "--timeout {longer:g}.",
    "broken": "Stop the TPU and start it again: {stop} && {start}.",
}


def addresses_of(tpu: str, attempt: Attempt) -> tuple[str, ...]:
    """Return the workers' addresses in `grpc://h1:p,h2:p`, as TensorFlow reads them.

    Raises:
        ConnectError: An address is malformed or occurs twice.
    """
    addresses: list[str] = []
    for part in tpu.split(","):
        address = part.strip().removeprefix(_PREFIX).rstrip("/")
        if address and ":" not in address:
            address = f"{address}:{WORKER_PORT}"
            attempt.note(f"no port given for {mask(address)}: using {WORKER_PORT}")
        try:
            host, port = host_and_port(address)
        except Unreachable as error:
            raise attempt.error(f"{mask(str(error))}.", _FIXES["address"]) from None
        if ":" in host:
            raise attempt.error(
                f"TensorFlow's TPUClusterResolver does not accept IPv6 addresses ({host}).",
                "Give an IPv4 address or a host name.",
            )
        addresses.append(f"{host}:{port}")
    twice = next((address for address in addresses if addresses.count(address) > 1), None)
    if twice is not None:
        raise attempt.error(
            f"The worker {mask(twice)} occurs twice.", "Give each worker of the TPU once."
        )
    return tuple(addresses)


def answering(addresses: Sequence[str], attempt: Attempt, node: Node | None = None) -> list[Worker]:
    """Check all workers in parallel.

    Raises:
        ConnectError: A worker fails its check.
    """
    single = f"the worker {mask(addresses[0])}"
    attempt.say(f"checking {single if len(addresses) == 1 else f'{len(addresses)} workers'}")
    workers: list[Worker] = []
    failed: list[Unreachable] = []
    for answer in check_all(addresses, timeout=attempt.deadline.left):
        if isinstance(answer, Unreachable):
            failed.append(answer)
            attempt.note(mask(f"{answer.address}: {answer}"))
        else:
            workers.append(answer)
            devices = counted(len(answer.devices), "device")
            attempt.note(mask(f"{answer.address} answers with {devices}"), say=True)
    if failed:
        raise _error(failed, attempt, node)
    return workers


def require_tpu_devices(workers: Sequence[Worker], attempt: Attempt) -> None:
    """Raise an error if the workers have no TPU.

    Initialising, which runs on the device TPU_SYSTEM of the first worker, would fail. Connecting
    before it would change TensorFlow's devices for nothing.
    """
    first = workers[0]
    if any(":TPU" in device for device in first.devices):
        return
    raise attempt.error(
        f"{first.address} is a TensorFlow server without a TPU: TPUs not found in the cluster.",
        f"Check the address, and that TensorFlow there is tensorflow-tpu. {SIMULATE}",
    )


def _error(failed: Sequence[Unreachable], attempt: Attempt, node: Node | None) -> ConnectError:
    first = failed[0]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    reason = mask(str(first)).removeprefix("no answer: ")
    # Another program may answer there. The sentence says which.
    verdict = "does not answer" + " as a TPU worker" * (first.reason == "not_tensorflow")
    fix = _FIXES[first.reason]
    values = {"longer": 2 * attempt.timeout, "port": first.address.rpartition(":")[2]}
    if node is not None and first.reason in _OF_NODE:
        fix = _OF_NODE[first.reason]
        values |= {"stop": node.command("stop"), "start": node.command("start")}
    return attempt.error(
        f"The TPU worker at {mask(first.address)}{more} {verdict}: {reason}.",
        f"{fix.format(**values)} {SIMULATE}",
    )
