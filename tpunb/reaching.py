"""Asks a TPU's workers whether they are there, before TensorFlow waits for them.

TensorFlow waits without end for a worker that does not answer, and holds Python's lock
meanwhile: neither an interrupt nor another thread can end it. So each worker is asked
first, in the words of TensorFlow's own protocol, by a call that has a time limit.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import re
import socket
import time
from collections.abc import Sequence
from typing import Any, Literal

from tpunb.bounded import bounded

__all__ = ["Reason", "Unreachable", "Worker", "ask", "ask_all", "host_and_port", "peers_of"]

Reason = Literal["address", "name", "refused", "dropped", "mute", "foreign", "broken"]
"""Why a worker is out of reach: its address cannot be read, its host has no address, nobody
listens on the port, packets are dropped, the port accepts and nobody answers, something else
than TensorFlow answers, or the worker fails."""

_STATUS = "/tensorflow.WorkerService/GetStatus"
# Needs no context to be asked for: a worker that is well says that it has none.
_EAGER = "/tensorflow.eager.EagerService/KeepAlive"
_MOST_AT_ONCE = 64
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,64}\]|[\w.-]{1,255}):([0-9]{1,5})")


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A worker that answers.

    Attributes:
        address: Its address, as `host:port`.
        devices: The full names of its devices.
        incarnation: A number that another worker at this address, or this one started
            again, would not have.
    """

    address: str
    devices: tuple[str, ...]
    incarnation: int


class Unreachable(Exception):
    """A worker that does not answer as one.

    Attributes:
        address: Its address, as `host:port`.
        reason: Why, in a word for programs; the message says it for people.
    """

    def __init__(self, address: str, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.address = address
        self.reason = reason


def host_and_port(address: str) -> tuple[str, int]:
    """Reads `host:port`, with or without `grpc://` before it.

    Raises:
        Unreachable: It is no such address.
    """
    from tpunb.masking import mask

    found = _ADDRESS.fullmatch(address.strip().removeprefix("grpc://"))
    if found is None or not 0 < int(found[2]) < 65536:
        shown = mask(address)
        raise Unreachable(shown, "address", f"{shown!r} is no address of the form host:port")
    return found[1].strip("[]"), int(found[2])


def ask_all(addresses: Sequence[str], *, timeout: float) -> list[Worker | Unreachable]:
    """Asks several workers at once.

    Args:
        addresses: Their addresses.
        timeout: Seconds in all.

    Returns:
        For each its answer, or why there is none.
    """
    deadline = time.monotonic() + timeout

    def one(address: str) -> Worker | Unreachable:
        try:
            return ask(address, timeout=max(0.05, deadline - time.monotonic()))
        except Unreachable as unreachable:
            return unreachable

    if not addresses:
        return []
    pool = concurrent.futures.ThreadPoolExecutor(min(_MOST_AT_ONCE, len(addresses)))
    try:
        return list(pool.map(one, addresses))
    finally:  # an interrupt does not wait for those that are still being asked
        pool.shutdown(wait=False, cancel_futures=True)


def ask(address: str, *, timeout: float) -> Worker:
    """Asks a worker for its devices.

    Args:
        address: Its address.
        timeout: Seconds after which it is given up.

    Raises:
        Unreachable: It does not answer as a worker of TensorFlow's; its reason says how.
    """
    deadline = time.monotonic() + timeout
    host, port = host_and_port(address)
    _knock(address, _resolved(address, host, port, deadline), deadline)
    return _status(address, host, port, deadline, timeout)


def peers_of(addresses: Sequence[str], *, timeout: float = 1.0) -> set[tuple[str, int]]:
    """Workers' addresses as numbers, by which this process's connections to them are known.

    Args:
        addresses: The workers; those that cannot be found are left out.
        timeout: Seconds in all.
    """
    deadline = time.monotonic() + timeout
    found = set()
    for address in addresses:
        with contextlib.suppress(Unreachable):
            host, port = host_and_port(address)
            for *_, target in _resolved(address, host, port, deadline):
                found.add((str(target[0]), port))
    return found


def _resolved(address: str, host: str, port: int, deadline: float) -> list[Any]:
    """The addresses of a host; the resolver itself knows no time limit."""

    def look_up() -> list[Any]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    try:
        return bounded(look_up, deadline)
    except TimeoutError:
        why = "the name service does not answer"
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise Unreachable(address, "name", f"the host {host!r} cannot be found ({why})")


def _knock(address: str, found: Sequence[Any], deadline: float) -> None:
    """Opens a connection to the port and closes it; tells a dead port from a silent one."""
    last = Unreachable(address, "dropped", "no answer: a firewall may drop what is sent to it")
    for place, (family, kind, protocol, _, target) in enumerate(found):
        # An address that drops packets must not eat the time of the others.
        left = max(0.05, (deadline - time.monotonic()) / (len(found) - place))
        with socket.socket(family, kind, protocol) as knocking:
            knocking.settimeout(left)
            try:
                knocking.connect(target)
                return
            except TimeoutError:
                pass
            except ConnectionRefusedError:
                last = Unreachable(address, "refused", "nobody listens on this port")
            except OSError as error:
                last = Unreachable(address, "dropped", error.strerror or str(error))
    raise last


def _status(address: str, host: str, port: int, deadline: float, timeout: float) -> Worker:
    import grpc

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target) as channel:
        try:
            answer = _call(channel, _STATUS, deadline)
            _call_eager(channel, deadline)
        except grpc.RpcError as error:
            raise _unreachable(address, error, timeout) from None
    return _worker(address, answer)


def _call(channel: Any, method: str, deadline: float) -> bytes:
    call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    answer: bytes = call(b"", timeout=max(0.05, deadline - time.monotonic()))
    return answer


def _call_eager(channel: Any, deadline: float) -> None:
    """Whether the service answers that runs operations: it may hang where the other does not."""
    import grpc

    try:
        _call(channel, _EAGER, deadline)
    except grpc.RpcError as error:
        if error.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}:
            raise


def _unreachable(address: str, error: Any, timeout: float) -> Unreachable:
    import grpc

    code, details = error.code(), str(error.details() or "")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(
            address, "mute", f"it accepts connections and did not answer in {round(timeout, 1):g} s"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return Unreachable(address, "foreign", "what answers there is no TensorFlow worker")
    if code == grpc.StatusCode.UNAVAILABLE:
        return Unreachable(
            address, "foreign", f"what listens there does not speak gRPC ({_shortly(details)})"
        )
    return Unreachable(address, "broken", f"it answers with {code.name}: {_shortly(details)}")


def _shortly(details: str) -> str:
    """The cause at the end of gRPC's chain of messages."""
    return details.rpartition("last error: ")[2].split("\n")[0][:200]


def _worker(address: str, answer: bytes) -> Worker:
    from tpunb.virtual._tensorflow import DeviceAttributesProto, message

    devices, numbers = [], []
    try:
        for part in _parts(answer):
            device = DeviceAttributesProto.FromString(part)
            devices.append(device.name)
            numbers.append(device.incarnation)
    except (message.DecodeError, IndexError, ValueError):
        raise Unreachable(address, "foreign", "its answer is not TensorFlow's") from None
    return Worker(address, tuple(devices), min(numbers, default=0))


def _parts(answer: bytes) -> list[bytes]:
    """The repeated field 1 of a `GetStatusResponse`, whose class the wheel leaves out."""
    parts, place = [], 0
    while place < len(answer):
        if answer[place] != 0x0A:
            raise ValueError("not a GetStatusResponse")
        size, shift, place = 0, 0, place + 1
        while True:
            byte = answer[place]
            size |= (byte & 0x7F) << shift
            shift, place = shift + 7, place + 1
            if byte < 0x80:
                break
        parts.append(answer[place : place + size])
        place += size
    return parts
