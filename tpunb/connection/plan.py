"""Resolves a request from the options, the environment and this machine."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Literal

from tpunb.connection.request import Request
from tpunb.errors import AcceleratorTypeError, ConnectError
from tpunb.machine.software import require_keras_2_here
from tpunb.tpu.defaults import DEFAULT_TPU
from tpunb.tpu.types import Accelerator, accelerator
from tpunb.virtual.installation import current

if TYPE_CHECKING:
    from tpunb.machine.detect import Search

_LIKE_A_TYPE = re.compile(r"(?:v[0-9]{1,2}[a-z]*|tpu[0-9]x)-[0-9]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A request with all defaults resolved.

    Attributes:
        request: The options.
        kind: `"virtual"` or `"hardware"`.
        tpu: A TPU type to simulate, or `"local"`, a name or an address; empty for a
            virtual Pod of whatever its workers make up.
        fallback: Whether a virtual TPU may stand in if connecting fails.
        notes: Sentences to show to the user.

    Two plans are equal if they lead to the same connection.
    """

    request: Request
    kind: Literal["virtual", "hardware"]
    tpu: str
    fallback: bool = dataclasses.field(default=False, compare=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)


def resolve(request: Request, found: Search | None = None) -> Plan:
    """Resolves what a request leaves open, without connecting.

    Args:
        request: The options.
        found: The result of `find_tpu`, if it has been called already.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: Options contradict each other, no TPU is found where one is
            required, or there is no Keras 2 where it is chosen.
    """
    plan = _resolved(request, found)
    if request.keras is None:
        return plan
    return dataclasses.replace(plan, notes=(*plan.notes, require_keras_2_here()))


def _resolved(request: Request, found: Search | None) -> Plan:
    from tpunb.machine.detect import default_tpu, find_tpu, requires_tpu

    required = request.require_tpu or requires_tpu()
    tpu = (request.tpu or "").strip()
    simulate = DEFAULT_TPU if request.simulate is True else request.simulate
    simulate = None if simulate is False else simulate
    if simulate is not None or request.is_pod:
        # The workers of a Pod without a type decide what they make up.
        whatever = DEFAULT_TPU if request.started == 0 else ""
        name = whatever if simulate is None else accelerator(simulate).name
        _refuse_contradiction(tpu, required)
        return Plan(request, "virtual", name)
    if tpu:
        if (meant := type_meant(tpu)) is not None:
            raise ConnectError(
                f"{tpu!r} is a TPU type, not a TPU.",
                fix=f"Simulate one: %tpu_connect --simulate {meant.name}, or "
                f'tpunb.connect(simulate="{meant.name}"). For this machine\'s TPU: local.',
            )
        return _installed(request, required) or Plan(request, "hardware", _normalised(tpu))
    if (default := default_tpu()) is not None:
        return _from_variable(request, default, required)
    if (installed := _installed(request, required)) is not None:
        return installed
    found = find_tpu() if found is None else found
    if found.tpu is not None:
        problems = found.problems(local_tpu=found.tpu == "local")
        notes = (*found.notes, *(f"{problem.message} {problem.fix}" for problem in problems))
        return Plan(request, "hardware", found.tpu, not required, notes)
    if required:
        raise ConnectError(
            f"There is no TPU here ({'; '.join(found.tried)}), and one is required.",
            fix="Choose a machine with a TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU to simulate one.",
            tried=found.tried,
        )
    note = f"No TPU was found ({'; '.join(found.tried)}): this is a virtual {DEFAULT_TPU}."
    return Plan(request, "virtual", DEFAULT_TPU, notes=(note,))


def _installed(request: Request, required: bool) -> Plan | None:
    """Plans the virtual TPU that TensorFlow's names refer to; any TPU name means it."""
    found = current()
    if found is None or found.lent:
        return None
    name = found.accelerator.name
    if required:
        raise ConnectError(
            f"TensorFlow's names refer to a virtual {name} where a real one is required.",
            fix="Choose a kernel without a virtual TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU.",
        )
    note = f"TensorFlow's names refer to a virtual {name} here."
    return Plan(request, "virtual", name, notes=(note,))


def _refuse_contradiction(tpu: str, required: bool) -> None:
    if tpu:
        raise ConnectError(
            f"Either connect to a TPU ({tpu}) or simulate one, not both.",
            fix="Leave out one of the two.",
        )
    if required:
        raise ConnectError(
            "A virtual TPU was asked for where a real one is required.",
            fix="Leave out --simulate, --workers and --local-workers; or leave out --require-tpu "
            "and unset TPUNB_REQUIRE_TPU.",
        )


def type_meant(text: str) -> Accelerator | None:
    """The TPU type of a text; None if it is a TPU's name or address.

    Raises:
        AcceleratorTypeError: It looks like a type that does not exist, as v4-9.
    """
    try:
        return accelerator(text)
    except AcceleratorTypeError:
        if _LIKE_A_TYPE.fullmatch(text.lower()):
            raise
        return None


def _normalised(tpu: str) -> str:
    """A TPU's name or address, with `local` in lower case."""
    return "local" if tpu.lower() == "local" else tpu


def _from_variable(request: Request, value: str, required: bool) -> Plan:
    """Plans what `TPUNB_TPU` names: a type to simulate, or a TPU."""
    found = type_meant(value)
    if found is None:
        return Plan(request, "hardware", _normalised(value))
    if required:
        raise ConnectError(
            f"TPUNB_TPU asks for a virtual TPU ({found.name}) where a real one is required.",
            fix="Unset TPUNB_TPU, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )
    note = "TPUNB_TPU asks for this virtual TPU."
    return Plan(request, "virtual", found.name, notes=(note,))
