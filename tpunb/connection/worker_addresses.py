"""The addresses of a virtual Pod's workers, as a user gives them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence

from tpunb._util.secret_masking import mask
from tpunb.errors import ConnectError

__all__ = ["workers_of"]


def workers_of(workers: Sequence[str] | str | None) -> tuple[str, ...]:
    """The addresses of workers, without what `grpc://` adds.

    Args:
        workers: A list, or a string of addresses that commas separate.

    Raises:
        ConnectError: One is no address, or two are the same.
    """
    if workers is None:
        return ()
    from tpunb.connection.cluster.probe import Unreachable, host_and_port

    if isinstance(workers, str):
        workers = [part for part in workers.split(",") if part.strip()]
    if not isinstance(workers, Iterable) or not all(isinstance(one, str) for one in workers):
        raise ConnectError(
            f"Workers are addresses such as 'host:8470', not {reprlib.repr(workers)}.",
            fix="Give a list of them.",
        )
    addresses = tuple(one.strip().removeprefix("grpc://").strip("/") for one in workers)
    try:
        read = [host_and_port(address) for address in addresses]
    except Unreachable as error:
        raise ConnectError(f"{error}.", fix="Write workers as host:port.") from None
    twice = {address for address, pair in zip(addresses, read, strict=True) if read.count(pair) > 1}
    if twice:
        raise ConnectError(
            f"{mask(min(twice))} is given twice.", fix="Give another worker for each host."
        )
    return addresses
