"""`%%tpu_compile` on a cell of JAX: its last call is compiled for a TPU, and not made."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tpunb.compiler import jax_functions
from tpunb.compiler.compile import compile as compile_for_tpu
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms

from .settings import CompileSettings
from .source import CellSource

_CALL = "__tpunb_call__"


def is_jax_cell(cell: CellSource, namespace: dict[str, Any]) -> bool:
    """Returns whether a cell ends with a call and reads values of JAX, and not TensorFlow."""
    if cell.last is None or not isinstance(cell.last.value, ast.Call):
        return False
    reads = {*cell.names.reads, *cell.later} & namespace.keys()
    values = [namespace[name] for name in reads]
    packages = [one.__name__.partition(".")[0] for one in values if isinstance(one, ModuleType)]
    if "tensorflow" in packages:
        return False
    return "jax" in packages or any(jax_functions.takes(value, [value]) for value in values)


def compile_jax_cell(
    cell: CellSource, namespace: dict[str, Any], settings: CompileSettings
) -> TpuProgram | TpuPrograms:
    """Compiles the call that is a cell's last expression.

    The statements before it are run, in a copy of the namespace: they prepare the arguments.

    Args:
        cell: The cell.
        namespace: The notebook's names, which stay as they are.
        settings: How to compile, and for which TPU types.

    Raises:
        CompileError: No TPU type is given, or the arguments cannot be given by position.
        Exception: What the statements raise, and what `tpunb.compile` does.
    """
    __tracebackhide__ = True
    if not settings.tpus:
        raise CompileError(
            "The TPU type to compile for is not known.",
            fix="Name one, as in %%tpu_compile --for v5e-8, or connect to one.",
        )
    several = len(settings.tpus) > 1
    try:
        fn, arguments = _last_call(cell, namespace)
        return compile_for_tpu(
            fn,
            *arguments,
            tpu=settings.tpus if several else settings.tpus[0],
            speed=settings.speed,
            timeout=settings.timeout,
            progress=settings.say,
        )
    except Exception as error:
        places = jax_functions.lines_of(error)
        if places and places[0].file == cell.filename:
            error.tpunb_lines = [places[0].line]  # type: ignore[attr-defined]
        raise


def _last_call(cell: CellSource, namespace: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The function that a cell's last expression calls, and the arguments."""
    assert cell.last is not None
    call = cell.last.value
    assert isinstance(call, ast.Call)
    # The lines of functions that the cell defines.
    lines = [f"{line}\n" for line in cell.lines]
    linecache.cache[cell.filename] = (len(cell.text), None, lines, cell.filename)

    called: list[Any] = []
    scope = {**namespace, _CALL: lambda fn, *args, **named: called.extend((fn, args, named))}
    instead = ast.Call(ast.Name(_CALL, ast.Load()), [call.func, *call.args], call.keywords)
    last = ast.copy_location(ast.Expr(instead), cell.last)
    module = ast.fix_missing_locations(ast.Module([*cell.body[:-1], last], type_ignores=[]))
    exec(compile(module, cell.filename, "exec"), scope)

    fn, arguments, named = called
    if not named:
        return fn, arguments
    bound = inspect.signature(fn).bind(*arguments, **named)
    if bound.kwargs or jax_functions.is_keras_model(fn):
        raise CompileError(
            f"The compiled call takes no argument by name: {', '.join(bound.kwargs or named)}.",
            fix="Pass a model its batch alone, and a function its arguments by position.",
        )
    return fn, bound.args
