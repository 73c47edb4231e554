"""Health checks of workers.

TensorFlow waits for ever for a worker that does not answer, while it holds the GIL
(`hanging_calls.py` names the releases and the issues). Neither an interrupt nor another thread can
end that wait. So each worker is checked first, over TensorFlow's own protocol, by a call with a
deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import socket
import threading
from collections.abc import Sequence
from typing import Any, Literal

from tpunb._util.deadline import Deadline, Running
from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask

Reason = Literal["address", "name", "refused", "filtered", "timeout", "not_tensorflow", "broken"]
"""Why a worker is unreachable: its address is malformed, its host name does not resolve, nothing
listens on the port, packets are filtered, the port accepts connections but does not answer, another
program answers, or the worker fails."""

_log = logger("connection")

_STATUS = "/tensorflow.WorkerService/GetStatus"
# Needs no eager context: a healthy worker answers that it has none.
_EAGER = "/tensorflow.eager.EagerService/KeepAlive"
# The proxies of gRPC, and so of TensorFlow.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_MOST_AT_ONCE = 64
_GRACE = 0.5  # seconds for a check to reach its own deadline
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,64}\]|[\w.-]{1,255}):([0-9]{1,5})")


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A worker that passes the health check.

    Attributes:
        address: The address, as `host:port`.
        devices: The full names of its devices.
        incarnation: A random number that changes when the worker restarts.
    """

    address: str
    devices: tuple[str, ...]
    incarnation: int


class Unreachable(Exception):
    """A worker that fails the health check.

    Attributes:
        address: The address, as `host:port`.
        reason: The reason, for programs. The message is for people.
    """

    def __init__(self, address: str, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.address = address
        self.reason = reason


def host_and_port(address: str) -> tuple[str, int]:
    """Read `host:port`, with or without `grpc://` before it.

    Raises:
        Unreachable: The address is malformed.
    """
    match = _ADDRESS.fullmatch(address.strip().removeprefix("grpc://"))
    if match is None or not 0 < int(match[2]) < 65536:
        shown = mask(address)
        raise Unreachable(shown, "address", f"{shown!r} is not an address of the form host:port")
    return match[1].strip("[]"), int(match[2])


def check_all(addresses: Sequence[str], *, timeout: float) -> list[Worker | Unreachable]:
    """Check several workers in parallel.

    Args:
        addresses: The workers' addresses.
        timeout: Seconds for all of them.

    Returns:
        For each address, the worker or the reason why it is unreachable.
    """
    deadline = Deadline(timeout)
    gate = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def check_one(address: str) -> Worker | Unreachable:
        try:
            with gate:
                return check(address, timeout=deadline.left)
        except Unreachable as unreachable:
            return unreachable

    # Use daemon threads: an interrupt and the end of the process do not wait for them.
    checks = [Running(functools.partial(check_one, address)) for address in addresses]
    answers: list[Worker | Unreachable] = []
    for address, running in zip(addresses, checks, strict=True):
        try:
            answers.append(running.result(deadline.end + _GRACE))
        except TimeoutError:
            answers.append(_timed_out(address, timeout))
    for address, answer in zip(addresses, answers, strict=True):
        _log.debug("%s: %s", address, answer)
    return answers


def check(address: str, *, timeout: float) -> Worker:
    """Ask a worker for its devices.

    Args:
        address: The worker's address.
        timeout: The time limit in seconds.

    Raises:
        Unreachable: The worker does not answer as a TensorFlow worker. Its reason says why.
    """
    import grpc

    deadline = Deadline(timeout)
    _knock(address, _resolved(address, deadline), deadline)
    with grpc.insecure_channel(address.strip().removeprefix("grpc://")) as channel:
        ask = functools.partial(
            channel.unary_unary, request_serializer=None, response_deserializer=None
        )
        try:
            answer = ask(_STATUS)(b"", timeout=deadline.left)
            try:
                ask(_EAGER)(b"", timeout=deadline.left)
            except grpc.RpcError as error:
                # The service that runs operations may hang while the other service answers.
                if error.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}:
                    raise
        except grpc.RpcError as error:
            raise _unreachable(address, error, timeout) from None
    return _worker(address, answer)


def peers_of(addresses: Sequence[str]) -> set[tuple[str, int]]:
    """Return the workers' IP addresses and ports, which identify connections to them.

    Args:
        addresses: The workers. Those that do not resolve within a second are left out.
    """
    deadline = Deadline(1.0)
    peers = set()
    for address in addresses:
        with contextlib.suppress(Unreachable):
            for *_, target in _resolved(address, deadline):
                peers.add((str(target[0]), int(target[1])))
    return peers


def _resolved(address: str, deadline: Deadline) -> list[Any]:
    """Resolve a worker's host with a deadline, which `getaddrinfo` lacks."""
    host, port = host_and_port(address)
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        return Running(look_up).result(deadline.end)
    except TimeoutError:
        why = "the name service does not answer"
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise Unreachable(address, "name", f"the host {host!r} cannot be found ({why})")


def _knock(address: str, infos: Sequence[Any], deadline: Deadline) -> None:
    """Connect to the port and disconnect, to tell a refused port from a filtered port."""
    last = Unreachable(address, "filtered", "no answer: a firewall may drop packets to it")
    for place, (family, kind, protocol, _, target) in enumerate(infos):
        # One filtered address must leave time for the others.
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(max(0.05, deadline.left / (len(infos) - place)))
            try:
                probe.connect(target)
                return
            except TimeoutError:
                pass
            except ConnectionRefusedError:
                last = Unreachable(address, "refused", "nothing listens on this port")
            except OSError as error:
                last = Unreachable(address, "filtered", error.strerror or str(error))
    raise last


def _unreachable(address: str, error: Any, timeout: float) -> Unreachable:
    import grpc

    code, details = error.code(), str(error.details() or "")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _timed_out(address, timeout)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return Unreachable(address, "not_tensorflow", "the answer is not from a TensorFlow worker")
    if code == grpc.StatusCode.UNAVAILABLE:
        reason = f"the server there does not speak gRPC ({_shortly(details)})"
        proxy = next((name for name in _PROXIES if os.environ.get(name)), None)
        if proxy is not None:
            reason += (
                f"; {proxy} is set: if the proxy is only for the Internet, add the host to no_proxy"
            )
        return Unreachable(address, "not_tensorflow", reason)
    return Unreachable(address, "broken", f"it answers with {code.name}: {_shortly(details)}")


def _timed_out(address: str, timeout: float) -> Unreachable:
    return Unreachable(
        address, "timeout", f"it accepts connections but did not answer in {round(timeout, 1):g} s"
    )


def _shortly(details: str) -> str:
    """Return the cause at the end of gRPC's chain of messages."""
    return mask(details.rpartition("last error: ")[2].split("\n")[0][:200])


def _worker(address: str, answer: bytes) -> Worker:
    from google.protobuf.message import DecodeError

    try:
        devices = _status_class().FromString(answer).devices
    except DecodeError:
        devices = ()
    if not devices or not all(device.name for device in devices):
        raise Unreachable(address, "not_tensorflow", "its answer is not from TensorFlow")
    names = tuple(device.name for device in devices)
    return Worker(address, names, min(device.incarnation for device in devices))


@functools.cache
def _status_class() -> Any:
    """Return a class with the needed fields of `GetStatusResponse`, which the wheel lacks.

    It is built without TensorFlow, whose import takes longer than a worker's answer.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tpunb/status.proto", package="tpunb")
    device = file.message_type.add(name="Device")
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    device.field.add(name="name", number=1, type=field.TYPE_STRING, label=one)
    device.field.add(name="incarnation", number=6, type=field.TYPE_FIXED64, label=one)
    status = file.message_type.add(name="Status")
    kind = {"type": field.TYPE_MESSAGE, "type_name": ".tpunb.Device"}
    status.field.add(name="devices", number=1, label=many, **kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tpunb.Status"))
