"""The plan for a request, resolved from its options, the environment and this machine."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Literal

from tpunb.connection.options import Request
from tpunb.errors import AcceleratorTypeError, ConnectError
from tpunb.machine.framework import JAX, NAMES, TENSORFLOW, framework_for
from tpunb.tpu.default_tpu import DEFAULT_TPU
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
        tpu: A TPU type to simulate, or `"local"`, a name or an address.
        fallback: Whether to simulate a TPU if connecting fails.
        notes: Sentences to show to the user.
        framework: The framework of a virtual TPU: `"tensorflow"` or `"jax"`.

    Two plans are equal if they lead to the same connection.
    """

    request: Request
    kind: Literal["virtual", "hardware"]
    tpu: str
    fallback: bool = dataclasses.field(default=False, compare=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    framework: str = TENSORFLOW


def resolve(request: Request, search: Search | None = None) -> Plan:
    """Resolve the open choices of a request, without connecting.

    Args:
        request: The options.
        search: The result of `find_tpu`, if it has been called already.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: Options contradict each other, a TPU is required but none is found, or
            Keras 2 is chosen but not installed.
    """
    main = sys.modules.get("__main__")
    framework, note = framework_for(request.framework, vars(main) if main else {})
    plan = _resolved(request, search)
    if plan.kind == "virtual" and framework == JAX and not _is_of_tensorflow(request):
        request.refuse_options_of_others(JAX)
        return dataclasses.replace(plan, framework=JAX)
    if plan.kind == "hardware" and framework == JAX:
        if plan.tpu != "local":
            raise ConnectError(
                f"JAX uses the TPU of the machine that it runs on, and {plan.tpu} is another one.",
                fix="Run the notebook there, with %tpu_connect local. Or simulate a TPU: "
                "%tpu_connect --simulate v5e-8.",
            )
        request.refuse_options_of_others(JAX)
        return dataclasses.replace(plan, framework=JAX)
    request.refuse_options_of_others(TENSORFLOW)
    if plan.kind == "virtual" and note:
        plan = dataclasses.replace(plan, notes=(*plan.notes, note))
    if request.keras is None:
        return plan
    from tpunb.machine.keras_2 import require_keras_2_here

    return dataclasses.replace(plan, notes=(*plan.notes, require_keras_2_here()))


def _resolved(request: Request, search: Search | None) -> Plan:
    from tpunb.machine.detect import default_tpu, find_tpu, requires_tpu

    required = request.require_tpu or requires_tpu()
    tpu = (request.tpu or "").strip()
    simulate = DEFAULT_TPU if request.simulate is True else request.simulate
    simulate = None if simulate is False else simulate
    if simulate is not None:
        name = accelerator(simulate).name
        _refuse_contradiction(tpu, required)
        return Plan(request, "virtual", name)
    if tpu:
        if (meant := type_meant(tpu)) is not None:
            raise ConnectError(
                f"{tpu!r} is a TPU type, not a TPU.",
                fix=f"Simulate it: %tpu_connect --simulate {meant.name}, or "
                f'tpunb.connect(simulate="{meant.name}"). For this machine\'s TPU: local.',
            )
        return _installed(request, required) or Plan(request, "hardware", _normalised(tpu))
    if (default := default_tpu()) is not None:
        return _from_variable(request, default, required)
    if (installed := _installed(request, required)) is not None:
        return installed
    search = find_tpu() if search is None else search
    if search.tpu is not None:
        problems = search.problems(local_tpu=search.tpu == "local")
        notes = (*search.notes, *(f"{problem.message} {problem.fix}" for problem in problems))
        return Plan(request, "hardware", search.tpu, not required, notes)
    if required:
        raise ConnectError(
            f"This machine has no TPU ({'; '.join(search.tried)}), but a TPU is required.",
            fix="Choose a machine with a TPU. To simulate one instead, remove --require-tpu and "
            "unset TPUNB_REQUIRE_TPU.",
            tried=search.tried,
        )
    note = f"No TPU was found ({'; '.join(search.tried)}): this is a virtual {DEFAULT_TPU}."
    return Plan(request, "virtual", DEFAULT_TPU, notes=(note,))


def _is_of_tensorflow(request: Request) -> bool:
    """Return whether the names of a TPU refer to a virtual TPU that is TensorFlow's."""
    installation = current()
    if installation is None or request.framework == JAX:
        return False
    return installation.framework != JAX


def _installed(request: Request, required: bool) -> Plan | None:
    """Plan the virtual TPU that the framework's names refer to. Any name of a TPU means it."""
    installation = current()
    if installation is None or installation.lent:
        return None
    name = installation.accelerator.name
    owner = f"{NAMES[installation.framework or TENSORFLOW]}'s"
    if required:
        raise ConnectError(
            f"{owner} names refer to a virtual {name}, but a real TPU is required.",
            fix="Choose a kernel without a virtual TPU, or remove --require-tpu and unset "
            "TPUNB_REQUIRE_TPU.",
        )
    note = f"{owner} names refer to a virtual {name} here."
    return Plan(request, "virtual", name, notes=(note,))


def _refuse_contradiction(tpu: str, required: bool) -> None:
    if tpu:
        raise ConnectError(
            f"Connect to a TPU ({tpu}) or simulate one, but not both.",
            fix="Remove one of the two options.",
        )
    if required:
        raise ConnectError(
            "A virtual TPU was requested, but a real TPU is required.",
            fix="Remove --simulate; or remove --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )


def type_meant(text: str) -> Accelerator | None:
    """Return the TPU type that a text names, or None if it is a TPU's name or address.

    Raises:
        AcceleratorTypeError: The text looks like a type that does not exist, such as v4-9.
    """
    try:
        return accelerator(text)
    except AcceleratorTypeError:
        if _LIKE_A_TYPE.fullmatch(text.lower()):
            raise
        return None


def _normalised(tpu: str) -> str:
    """Return a TPU's name or address, with `local` in lower case."""
    return "local" if tpu.lower() == "local" else tpu


def _from_variable(request: Request, value: str, required: bool) -> Plan:
    """Plan for the value of `TPUNB_TPU`: a type to simulate, or a TPU."""
    meant = type_meant(value)
    if meant is None:
        return Plan(request, "hardware", _normalised(value))
    if required:
        raise ConnectError(
            f"TPUNB_TPU requests a virtual TPU ({meant.name}), but a real TPU is required.",
            fix="Unset TPUNB_TPU, or remove --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )
    note = "TPUNB_TPU requests this virtual TPU."
    return Plan(request, "virtual", meant.name, notes=(note,))
