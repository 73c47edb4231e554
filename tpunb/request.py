"""What to connect to: the user's wishes, the environment's and what is found here."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from tpunb.accelerators import accelerator
from tpunb.assignment import is_whole
from tpunb.environment import default_tpu, find_tpu, requires_tpu
from tpunb.errors import AcceleratorTypeError, ComputationShapeError, ConnectError
from tpunb.virtual import installation
from tpunb.virtual.strict.rules import STRICT, Strictness

__all__ = ["DEFAULT_TYPE", "Request", "resolve"]

DEFAULT_TYPE = "v5e-8"
"""The virtual TPU that stands in where none is found."""

_DAY = 24 * 60 * 60


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What to connect to, once all defaults are settled.

    Attributes:
        kind: `"virtual"` or `"hardware"`.
        tpu: A TPU type to simulate, or `"local"`, a name or an address.
        computation_shape: Cores of one replica along the topology's axes.
        replicas: How many replicas to use; None for as many as fit.
        spmd: Whether XLA partitions tensors over a replica's logical devices.
        strictness: What a virtual TPU refuses.
        patch: Whether TensorFlow's own names answer for the virtual TPU.
        zone: The Cloud zone of a TPU given by name.
        project: The Cloud project of a TPU given by name.
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
    timeout: float = dataclasses.field(default=60, compare=False)
    fallback: bool = dataclasses.field(default=False, compare=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)


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
    timeout: float = 60,
) -> Request:
    """Settles what `connect` is asked for, without connecting.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: The wishes contradict each other, or no TPU is found where
            one is required.
    """
    require_tpu = require_tpu or requires_tpu()
    kind, target, fallback, notes = _target(tpu, simulate, require_tpu)
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
        timeout=timeout,
        fallback=fallback,
        notes=notes,
    )


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


def _target(tpu: str | None, simulate: str | int | bool | None, require_tpu: bool) -> _Target:
    """What to connect to, whether to fall back, and what to say about it."""
    if not isinstance(tpu, str | None):
        raise TypeError(f"tpu is the name or the address of a TPU, not a {type(tpu).__name__}")
    if simulate is not None and simulate is not False:
        _refuse_contradiction(tpu, require_tpu)
        wanted = DEFAULT_TYPE if simulate is True else simulate
        return "virtual", accelerator(wanted).name, False, ()
    if tpu is not None and tpu.strip():
        _refuse_type_as_name(tpu.strip())
        return _installed(require_tpu) or ("hardware", tpu.strip(), False, ())
    default = default_tpu()
    if default is not None:
        return _from_variable(default, require_tpu)
    if (installed := _installed(require_tpu)) is not None:
        return installed
    found = find_tpu()
    if found.tpu is not None:
        return "hardware", found.tpu, not require_tpu, ()
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
            mend="Leave out --simulate, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )


def _refuse_type_as_name(tpu: str) -> None:
    try:
        found = accelerator(tpu)
    except AcceleratorTypeError:
        return
    raise ConnectError(
        f"{tpu!r} is a TPU type, not a TPU.",
        mend=f"To simulate one: %tpu_connect --simulate {found.name}, or "
        f'tpunb.connect(simulate="{found.name}"). For this machine\'s TPU: local.',
    )


def _from_variable(value: str, require_tpu: bool) -> _Target:
    """What `TPUNB_TPU` stands for: a type to simulate, or a TPU."""
    try:
        found = accelerator(value)
    except AcceleratorTypeError:
        return "hardware", value, False, ()
    if require_tpu:
        raise ConnectError(
            f"TPUNB_TPU asks for a virtual TPU ({found.name}) where a real one is required.",
            mend="Unset TPUNB_TPU, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )
    return "virtual", found.name, False, ("TPUNB_TPU asks for this virtual TPU.",)
