"""`%%tpu_compile` on a cell of JAX: its last call is compiled for a TPU, and not made."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tpunb.compiler import jax_functions
from tpunb.compiler.compile import compile as compile_for_tpu
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_of_this_package

from .settings import CompileSettings
from .source import CellSource

_CALL = "__tpunb_call__"


def is_jax_cell(cell: CellSource, namespace: dict[str, Any]) -> bool:
    """Returns whether a cell reads values of JAX, and not TensorFlow."""
    if _call_at_the_end(cell) is None and "tensorflow" in sys.modules:
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
    """Compiles the call at a cell's end, whose value may get a name.

    The statements before it are run, in a copy of the namespace: they prepare the arguments.

    Args:
        cell: The cell.
        namespace: The notebook's names, which stay as they are.
        settings: How to compile, and for which TPU types.

    Raises:
        CompileError: There is no call at the end, or no TPU type is given, or a model is given
            more than its batch.
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
        _mark(error, cell)
        raise


def _mark(error: Exception, cell: CellSource) -> None:
    """Marks an error with the cell's line, and with the one in a function of another cell."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, TpunbError) or is_of_this_package(innermost):
        return
    places = jax_functions.lines_of(error)
    inside = [place.line for place in places if place.file == cell.filename]
    error.tpunb_lines = inside[:1] or [cell.body[-1].lineno]  # type: ignore[attr-defined]
    if places and places[0].file != cell.filename:
        file, line = places[0].file, places[0].line
        where = Path(file).name if Path(file).exists() else "another cell"
        text = linecache.getline(file, line).strip()
        error.tpunb_where = f"At line {line} of {where}: {text}"  # type: ignore[attr-defined]


def _call_at_the_end(cell: CellSource) -> ast.Call | None:
    last = cell.body[-1] if cell.body else None
    value = last.value if isinstance(last, (ast.Expr, ast.Assign, ast.AnnAssign)) else None
    return value if isinstance(value, ast.Call) else None


def _last_call(cell: CellSource, namespace: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The function that is called at a cell's end, and the arguments."""
    call = _call_at_the_end(cell)
    if call is None:
        raise CompileError(
            "The cell does not end with a call, which is what is compiled of JAX.",
            fix="End it with one, such as step(params, batch) or state = step(state, batch).",
        )
    # The lines of functions that the cell defines.
    lines = [f"{line}\n" for line in cell.lines]
    linecache.cache[cell.filename] = (len(cell.text), None, lines, cell.filename)

    called: list[Any] = []
    scope = {**namespace, _CALL: lambda fn, *args, **named: called.extend((fn, args, named))}
    instead = ast.Call(ast.Name(_CALL, ast.Load()), [call.func, *call.args], call.keywords)
    last = ast.copy_location(ast.Expr(instead), cell.body[-1])
    module = ast.fix_missing_locations(ast.Module([*cell.body[:-1], last], type_ignores=[]))
    exec(compile(module, cell.filename, "exec"), scope)

    fn, arguments, named = called
    return jax_functions.with_named(fn, arguments, named) if named else fn, arguments
