"""The answers of `jax.stages.Compiled` about a program: those of a TPU's program, if it is judged.

JAX has compiled the program for the CPU that runs it, whose memory, costs and text are others.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.errors import TpuWarning
from tpunb.tpu.compiled_program import Program

ProgramOf = Callable[[Any], Program | None]
"""Waits for the verdict on an executable of JAX, and returns the TPU's program, or None."""


class NotOfVirtualTpuError(Exception):
    """The executable is another client's."""


def answering_for_a_tpu(program_of: ProgramOf) -> contextlib.ExitStack:
    """Make compiled programs answer for a TPU, until the returned stack is closed.

    Args:
        program_of: Returns the program of an executable; raises `NotOfVirtualTpuError` for others.
    """

    def answering(name: str, answer: Callable[[Program], Any]) -> Callable[..., Any]:
        def call(original: Callable[..., Any], compiled: Any) -> Any:
            try:
                program = program_of(compiled.runtime_executable())
            except NotOfVirtualTpuError:
                return original(compiled)
            known = None if program is None else answer(program)
            if known is None:
                warnings.warn(f"{name}() {_OF_THE_CPU}", TpuWarning, 3)
                return original(compiled)
            return known

        return call

    owner = sys.modules["jax"].stages.Compiled
    with contextlib.ExitStack() as undo:
        for name, answer in _ANSWERS.items():
            undo.enter_context(Replaced(owner, name, answering(name, answer)))
        return undo.pop_all()


_OF_THE_CPU = (
    "answers for the CPU that runs the program on a virtual TPU, not for a TPU. "
    "tpunb.compile(function, *arguments) has the TPU's memory, and with speed=True its time."
)


def _memory(program: Program) -> Any:
    """Return the figures that JAX gives for a TPU's program, under their names."""
    memory = program.memory
    if memory is None:
        return None
    return types.SimpleNamespace(
        generated_code_size_in_bytes=memory.code,
        argument_size_in_bytes=memory.arguments,
        output_size_in_bytes=memory.outputs + memory.aliased,
        alias_size_in_bytes=memory.aliased,
        temp_size_in_bytes=memory.temporaries,
        peak_memory_in_bytes=memory.peak,
    )


_ANSWERS: dict[str, Callable[[Program], Any]] = {
    "memory_analysis": _memory,
    "as_text": lambda program: program.text or None,
    "cost_analysis": lambda program: None,
}
"""What a TPU's program answers to each method; None if it does not know."""
