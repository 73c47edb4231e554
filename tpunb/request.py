"""What to connect to: the user's wishes, the environment's and what is found here."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tpunb.accelerators import Accelerator, accelerator
from tpunb.assignment import is_whole
from tpunb.errors import AcceleratorTypeError, ComputationShapeError, ConnectError
from tpunb.virtual import installation
from tpunb.virtual.strict.rules import STRICT, Strictness

if TYPE_CHECKING:
    from tpunb.environment import Search

__all__ = ["DEFAULT_TYPE", "Request", "resolve"]

DEFAULT_TYPE = "v5e-8"
"""The virtual TPU that stands in where none is found."""

_DAY = 24 * 60 * 60
_MOST_WORKERS = 64
_LIKE_A_TYPE = re.compile(r"(?:v[0-9]{1,2}[a-z]*|tpu[0-9]x)-[0-9]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What to connect to, once all defaults are settled.

    Attributes:
        kind: `"virtual"` or `"hardware"`.
        tpu: A TPU type to simulate, or `"local"`, a name or an address; empty for a
            virtual Pod of whatever its workers make up.
        computation_shape: Cores of one replica along the topology's axes.
        replicas: How many replicas to use; None for as many as fit.
        spmd: Whether XLA partitions tensors over a replica's logical devices.
        strictness: What a virtual TPU refuses.
        patch: Whether TensorFlow's own names answer for the virtual TPU.
        zone: The Cloud zone of a TPU given by name.
        project: The Cloud project of a TPU given by name.
        workers: The addresses of a virtual Pod's workers.
        local_workers: How many workers to start on this machine: None for none, 0 for one
            for each host of the TPU.
        timeout: Seconds after which an unreachable worker is given up.
        fallback: Whether a virtual TPU may stand in if connecting fails.
        notes: Sentences that the user should read.

    Two requests are equal if they lead to the same connection: how long to wait
    and what to say do not count.
    """

    kind: Literal["virtual", "hardware"]
    tpu: str
    computation_shape: tuple[int, ...] | None = None
    replicas: int | None = None
    spmd: bool = False
    strictness: Strictness = STRICT
    patch: bool = False
    zone: str | None = None
    project: str | None = None
    workers: tuple[str, ...] = ()
    local_workers: int | None = None
    timeout: float = dataclasses.field(default=60, compare=False)
    fallback: bool = dataclasses.field(default=False, compare=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_pod(self) -> bool:
        """Whether the virtual TPU's hosts are worker processes."""
        return bool(self.workers) or self.local_workers is not None


def resolve(
    tpu: str | None = None,
    *,
    simulate: str | int | bool | None = None,
    computation_shape: Sequence[int] | None = None,
    replicas: int | None = None,
    spmd: bool = False,
    strict: bool | Mapping[str, bool] = True,
    patch: bool = False,
    require_tpu: bool = False,
    zone: str | None = None,
    project: str | None = None,
    workers: Sequence[str] | str | None = None,
    local_workers: int | bool = False,
    timeout: float = 60,
    found: Search | None = None,
) -> Request:
    """Settles what `connect` is asked for, without connecting.

    It takes what `connect` takes, and `found`: what looking for a TPU has found, where
    that has been done already.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: The wishes contradict each other, or no TPU is found where
            one is required.
    """
    from tpunb.environment import requires_tpu

    require_tpu = require_tpu or requires_tpu()
    addresses, started = workers_of(workers), _started(local_workers)
    if addresses or started is not None:
        _refuse_no_pod(addresses, started, patch)
        simulate = _pod_type(simulate, started)
    kind, target, fallback, notes = _target(tpu, simulate, require_tpu, found)
    if replicas is not None and not (is_whole(replicas) and replicas >= 1):
        raise ComputationShapeError(
            f"The number of replicas is a positive whole number, not {reprlib.repr(replicas)}.",
            mend="Leave it out for as many replicas as fit.",
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= _DAY):
        raise ConnectError(
            f"A timeout is a number of seconds, not {reprlib.repr(timeout)}.",
            mend="Choose one above 0, and of a day at most; the default is 60.",
        )
    return Request(
        kind=kind,
        tpu=target,
        computation_shape=_shape_as_given(computation_shape),
        replicas=replicas,
        spmd=spmd,
        strictness=Strictness.of(strict),
        patch=patch,
        zone=zone,
        project=project,
        workers=addresses,
        local_workers=started,
        timeout=timeout,
        fallback=fallback,
        notes=notes,
    )


def workers_of(workers: Sequence[str] | str | None) -> tuple[str, ...]:
    """The addresses of workers, without what `grpc://` adds.

    Args:
        workers: A list, or a string of addresses that commas separate.

    Raises:
        ConnectError: One is no address, or two are the same.
    """
    if workers is None:
        return ()
    from tpunb.masking import mask
    from tpunb.reaching import Unreachable, host_and_port

    if isinstance(workers, str):
        workers = [part for part in workers.split(",") if part.strip()]
    if not isinstance(workers, Iterable) or not all(isinstance(one, str) for one in workers):
        raise ConnectError(
            f"Workers are addresses such as 'host:8470', not {reprlib.repr(workers)}.",
            mend="Give a list of them.",
        )
    addresses = tuple(one.strip().removeprefix("grpc://").strip("/") for one in workers)
    try:
        places = [host_and_port(address) for address in addresses]
    except Unreachable as error:
        raise ConnectError(f"{error}.", mend="Write workers as host:port.") from None
    twice = {
        address for address, place in zip(addresses, places, strict=True) if places.count(place) > 1
    }
    if twice:
        raise ConnectError(
            f"{mask(min(twice))} is given twice.", mend="Give another worker for each host."
        )
    return addresses


def _started(local_workers: int | bool) -> int | None:
    """How many workers to start; 0 for one for each host, None for none."""
    if local_workers is False:
        return None
    if local_workers is True:
        return 0
    if not (is_whole(local_workers) and 1 <= local_workers <= _MOST_WORKERS):
        raise ConnectError(
            f"The number of local workers is 1 to {_MOST_WORKERS}, not "
            f"{reprlib.repr(local_workers)}.",
            mend="Leave the number out for one worker for each host.",
        )
    return int(local_workers)


def _refuse_no_pod(workers: Sequence[str], started: int | None, patch: bool) -> None:
    if workers and started is not None:
        raise ConnectError(
            "Workers are either given or started on this machine, not both.",
            mend="Leave out the workers or the local ones.",
        )
    if patch:
        raise ConnectError(
            "TensorFlow's own names cannot answer for a virtual Pod of workers.",
            mend="Leave out --patch, or the workers: a Pod of one process has as many hosts.",
        )


def _pod_type(simulate: str | int | bool | None, started: int | None) -> str | int | bool:
    """What a Pod simulates; an empty string for whatever its workers make up."""
    if simulate is not None and simulate is not False and simulate is not True:
        return simulate
    return DEFAULT_TYPE if simulate is True or started == 0 else ""


def _shape_as_given(shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """A computation shape whose size and values are checked when the mesh is known."""
    if shape is None:
        return None
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ComputationShapeError(
            f"A computation shape is four positive whole numbers, not {reprlib.repr(shape)}.",
            mend="Write them as a list, such as [1, 1, 1, 2].",
        )
    return tuple(shape)


_Target = tuple[Literal["virtual", "hardware"], str, bool, tuple[str, ...]]


def _target(
    tpu: str | None, simulate: str | int | bool | None, require_tpu: bool, found: Search | None
) -> _Target:
    """What to connect to, whether to fall back, and what to say about it."""
    if not isinstance(tpu, str | None):
        raise TypeError(f"tpu is the name or the address of a TPU, not a {type(tpu).__name__}")
    if simulate is not None and simulate is not False:
        _refuse_contradiction(tpu, require_tpu)
        wanted = DEFAULT_TYPE if simulate is True else simulate
        return "virtual", accelerator(wanted).name if wanted else "", False, ()
    if tpu is not None and tpu.strip():
        _refuse_type_as_name(tpu.strip())
        return _installed(require_tpu) or ("hardware", _spelt(tpu.strip()), False, ())
    from tpunb.environment import default_tpu, find_tpu

    default = default_tpu()
    if default is not None:
        return _from_variable(default, require_tpu)
    if (installed := _installed(require_tpu)) is not None:
        return installed
    found = find_tpu() if found is None else found
    if found.tpu is not None:
        return "hardware", found.tpu, not require_tpu, found.notes
    if require_tpu:
        raise ConnectError(
            f"There is no TPU here ({'; '.join(found.tried)}), and one is required.",
            mend="Choose a machine with a TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU to simulate one.",
            tried=found.tried,
        )
    note = f"No TPU was found ({'; '.join(found.tried)}): this is a virtual {DEFAULT_TYPE}."
    return "virtual", DEFAULT_TYPE, False, (note,)


def _installed(require_tpu: bool) -> _Target | None:
    """The virtual TPU that TensorFlow's names answer for: what is meant by any name here."""
    found = installation.current()
    if found is None or found.lent:
        return None
    name = found.accelerator.name
    if require_tpu:
        raise ConnectError(
            f"TensorFlow's names answer for a virtual {name} where a real one is required.",
            mend="Choose a kernel without a virtual TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU.",
        )
    return "virtual", name, False, (f"TensorFlow's names answer for a virtual {name} here.",)


def _refuse_contradiction(tpu: str | None, require_tpu: bool) -> None:
    if tpu is not None and tpu.strip():
        raise ConnectError(
            f"A TPU is either connected to ({tpu}) or simulated, not both.",
            mend="Leave out one of them.",
        )
    if require_tpu:
        raise ConnectError(
            "A virtual TPU was asked for where a real one is required.",
            mend="Leave out --simulate, --workers and --local-workers; or leave out --require-tpu "
            "and unset TPUNB_REQUIRE_TPU.",
        )


def _refuse_type_as_name(tpu: str) -> None:
    found = _type_meant(tpu)
    if found is None:
        return
    raise ConnectError(
        f"{tpu!r} is a TPU type, not a TPU.",
        mend=f"To simulate one: %tpu_connect --simulate {found.name}, or "
        f'tpunb.connect(simulate="{found.name}"). For this machine\'s TPU: local.',
    )


def _type_meant(text: str) -> Accelerator | None:
    """The TPU type that a text is; None for a TPU's name or address.

    Raises:
        AcceleratorTypeError: It is meant for a type, as v4-9, of which there is none.
    """
    try:
        return accelerator(text)
    except AcceleratorTypeError:
        if _LIKE_A_TYPE.fullmatch(text.lower()):
            raise
        return None


def _spelt(tpu: str) -> str:
    """A TPU's name or address; this machine's is `local`, however that is written."""
    return "local" if tpu.lower() == "local" else tpu


def _from_variable(value: str, require_tpu: bool) -> _Target:
    """What `TPUNB_TPU` stands for: a type to simulate, or a TPU."""
    found = _type_meant(value)
    if found is None:
        return "hardware", _spelt(value), False, ()
    if require_tpu:
        raise ConnectError(
            f"TPUNB_TPU asks for a virtual TPU ({found.name}) where a real one is required.",
            mend="Unset TPUNB_TPU, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )
    return "virtual", found.name, False, ("TPUNB_TPU asks for this virtual TPU.",)
