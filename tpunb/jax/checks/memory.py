"""Checks of what a step moves: calls of the host, constants, arguments on one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb._util.units import byte_count
from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.equations import bytes_of, places_of

_ANSWERS = {"pure_callback": "jax.pure_callback", "io_callback": "jax.experimental.io_callback"}
_TELLS = {"debug_callback": "jax.debug", "debug_print": "jax.debug.print"}

_LARGE = 2 * 2**20
"""The least bytes of a constant to report: megabytes."""


def host_calls(call: Call) -> Iterator[Problem]:
    """Yield the calls of Python on the host, except those in a branch."""
    for equation, source, is_conditional in call.equations if call.is_step else ():
        name = equation.primitive.name
        if is_conditional or name not in {*_ANSWERS, *_TELLS}:
            continue
        sent = sum(bytes_of(each.aval) for each in equation.invars)
        answer = sum(bytes_of(each.aval) for each in equation.outvars)
        yield (
            _waiting(call, _ANSWERS[name], sent + answer)
            if name in _ANSWERS
            else _telling(call, sent)
        ).at(places_of(source))


def _waiting(call: Call, name: str, size: int) -> Problem:
    return Problem(
        "host-call",
        f"In each call of {call.name}, the TPU waits here until Python on the host has answered "
        f"({name}), and {byte_count(size)} cross between the host and the TPU.",
        "Compute it with jax.numpy or jax.random in the step. Or compute it before the loop, and "
        "pass it as an argument.",
    )


def _telling(call: Call, size: int) -> Problem:
    return Problem(
        "host-call",
        f"Each call of {call.name} sends {byte_count(size)} from here to Python on the host, in "
        "the middle of the program.",
        "Return the value, and print it outside in every 100th step. Or send it in a branch: "
        "`jax.lax.cond(step % 100 == 0, show, lambda x: None, x)`.",
    )


def constants(call: Call) -> Iterator[Problem]:
    """Yield the large arrays that the function closes over, which the program contains."""
    for array, equation in _constants(call):
        size = getattr(array, "nbytes", 0)
        if size < _LARGE:
            continue
        name = call.name_of(array)
        shape = ",".join(map(str, array.shape))
        text = f"{array.dtype}[{shape}], {byte_count(size)}"
        yield Problem(
            "constant",
            f"{f'`{name}` ({text})' if name else f'An array ({text})'} is a constant in the "
            f"program of {call.name}. Every core holds all of it, and later changes of it have no "
            "effect.",
            _THROUGH_A_NAME
            if call.is_cell
            else f"Pass it as an argument: `{_called(call.name)}(..., {name or 'array'})`.",
        ).at(() if equation is None else places_of(equation))


_THROUGH_A_NAME = "Read it through a name of the notebook that is an array or a tree of arrays."


def _called(name: str) -> str:
    return name if name.isidentifier() else "f"


def _constants(call: Call) -> Iterator[tuple[Any, Any]]:
    """Yield the constants of a program, each with the first equation that reads it."""
    programs = [(call.program, None)]
    for equation, source, _ in call.equations:
        for value in equation.params.values():
            if getattr(value, "consts", None):
                programs.append((value, source))
    for program, source in programs:
        inner = program.jaxpr
        for variable, array in zip(inner.constvars, program.consts, strict=True):
            array = getattr(array, "val", array)  # JAX wraps NumPy's arrays
            yield array, source or _first_use(inner, variable)


def _first_use(program: Any, variable: Any) -> Any:
    uses = (each for each in program.eqns if any(own is variable for own in each.invars))
    return next(uses, None)


def moved_arguments(call: Call) -> Iterator[Problem]:
    """Yield the large arguments that each call copies from one device to several."""
    if not call.moved:
        return
    first, others = call.moved[0], len(call.moved) - 1
    yield Problem(
        "moved-argument",
        f"Each call of {call.name} copies {first.name or 'an argument'} "
        f"({byte_count(first.bytes)}){f' and {others} more' if others else ''} from one device to "
        f"{call.devices}.",
        f"Place it once, before the calls: jax.device_put({first.name or 'x'}, "
        'NamedSharding(mesh, P("data"))) if it is a batch, and with P() if it is not.',
    )
