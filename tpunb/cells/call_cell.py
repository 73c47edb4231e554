"""`%%tpu_compile` on a cell whose last call is compiled for a TPU, but not run.

The call is a call of a JAX function, or of a Keras model's `fit`, `evaluate` or `predict`. Without
a connection it may also be a call of a TensorFlow function.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpunb._util.code_names import mentions, value_of
from tpunb.cells.keras_calls import METHODS, KerasCall, is_keras_method, keras_call
from tpunb.cells.reading.source import CellSource
from tpunb.cells.settings import CompileSettings
from tpunb.compiler.compile import compile_call
from tpunb.compiler.frameworks import framework_of_module, frameworks_in, frameworks_of
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.compiler.searching import search
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_of_this_package, lines_of
from tpunb.machine.framework import JAX
from tpunb.machine.import_tensorflow import has_tensorflow

_CALL = "__tpunb_call__"

_SHOW = frozenset({"print", "display", "float", "int", "len", "list", "dict"})
_WAIT = frozenset({"block_until_ready", "device_get", "item", "numpy", "tolist"})
_NUMPY = frozenset({"np", "numpy"})
"""Functions, methods and modules that only use a result, and compute nothing on a TPU."""

_ON_ONE_CORE = (
    "The batch is cut over all cores. Keras runs it on one core unless "
    "keras.distribution.set_distribution(keras.distribution.DataParallel()) is called."
)


def ends_with_call(cell: CellSource) -> bool:
    """Return whether a cell ends with a call, whose value may be assigned to a name."""
    return _call_at_the_end(cell) is not None


def is_call_cell(cell: CellSource, namespace: dict[str, Any], *, connected: bool) -> bool:
    """Return whether a cell's last call is compiled, rather than the cell on every replica.

    Args:
        cell: The cell.
        namespace: The notebook's names.
        connected: Whether there is a strategy that could run the cell.
    """
    call = _call_at_the_end(cell)
    if call is not None and not connected:
        return True
    if not has_tensorflow():
        return True
    values = [namespace[name] for name in {*cell.names.reads, *cell.later} & namespace.keys()]
    in_cell = frameworks_in(values) | _find_imported(cell)
    if call is None:
        return in_cell == {JAX}
    called = _value_of(call.func, cell, namespace)
    if called is None:  # the cell makes the function or model
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
        return is_method or in_cell == {JAX}
    if is_keras_method(called):
        return True
    reached = frameworks_of(called)
    return (reached if len(reached) == 1 else in_cell) == {JAX}


def largest_batch_call(cell: CellSource, tpus: Sequence[str]) -> str:
    """Return the call that finds the largest batch for the function in a cell's last call."""
    call = _call_at_the_end(cell)
    parts = ["step", "params", "batch"] if call is None else [*map(ast.unparse, _parts(call))]
    tpu = f', tpu="{tpus[0]}"' if len(tpus) == 1 else ""
    return f"tpunb.largest_batch({', '.join(parts)}{tpu})"


def _parts(call: ast.Call) -> list[ast.expr]:
    return [call.func, *call.args, *(keyword.value for keyword in call.keywords)]


def may_be_jax(cell: CellSource, namespace: dict[str, Any]) -> bool:
    """Return whether a cell ends with a call that shows no framework, while JAX is imported."""
    call = _call_at_the_end(cell)
    if call is None or "jax" not in sys.modules:
        return False
    called = _value_of(call.func, cell, namespace)
    return called is not None and not frameworks_of(called)


def _find_imported(cell: CellSource) -> set[str]:
    """Return the frameworks that a cell imports itself."""
    return {*filter(None, map(framework_of_module, mentions(cell.code).imports))}


def compile_call_cell(
    cell: CellSource,
    namespace: dict[str, Any],
    settings: CompileSettings,
    *,
    by_jax: bool = False,
) -> TpuProgram | TpuPrograms:
    """Compile the call at a cell's end, whose value may be assigned to a name.

    The statements before the call run in a copy of the namespace, because they prepare the
    arguments.

    Args:
        cell: The cell.
        namespace: The notebook's names, which do not change.
        settings: How to compile, and for which TPU types.
        by_jax: Whether JAX traces the function, regardless of the framework that it uses.

    Raises:
        CompileError: The cell does not end with a call, or no TPU type is given.
        Exception: Any error that the statements or `tpunb.compile` raise.
    """
    __tracebackhide__ = True
    call = _required_call(cell)
    if not settings.tpus:
        raise CompileError(
            "The TPU type to compile for is not known.",
            fix="Name one, as in %%tpu_compile --for v5e-8, or connect to one.",
        )
    try:
        fn, args, named = _what_is_called(call, cell, namespace)
        keras = keras_call(fn, args, named)
        if keras is not None:
            fn, args, named = keras.method, keras.batch, {}
        elif by_jax:
            fn = sys.modules["jax"].jit(fn)
        programs = list(compile_call(fn, args, named, settings))
    except Exception as error:
        _mark(error, cell)
        raise
    if keras is not None:
        programs = [_noted(program, keras) for program in programs]
    return TpuPrograms(programs) if len(programs) > 1 else programs[0]


def search_call_cell(cell: CellSource, namespace: dict[str, Any], settings: CompileSettings) -> Any:
    """Search the layout of the call at a cell's end, with `tpunb.search`."""
    __tracebackhide__ = True
    call = _required_call(cell)
    try:
        fn, args, named = _what_is_called(call, cell, namespace)
        fn = functools.partial(fn, **named) if named else fn
        return search(fn, *args, tpu=settings.tpus, timeout=settings.timeout)
    except Exception as error:
        _mark(error, cell)
        raise


def _required_call(cell: CellSource) -> ast.Call:
    """Return the call whose value ends a cell.

    Raises:
        CompileError: The cell does not end with a call.
    """
    call = _call_at_the_end(cell)
    if call is None:
        raise CompileError(
            "The cell does not end with a call, which is the part of it that is compiled.",
            fix="End it with one: step(params, batch), state = step(state, batch), or "
            "model.fit(x, y).",
        )
    return call


def _noted(program: TpuProgram, call: KerasCall) -> TpuProgram:
    """Return a program with notes on the parts of the call that the program does not contain."""
    notes = call.notes
    if call.on_one_core and program.replicas > 1:
        notes = (*notes, _ON_ONE_CORE)
    return dataclasses.replace(program, notes=(*notes, *program.notes))


def _value_of(node: ast.expr, cell: CellSource, namespace: dict[str, Any]) -> Any:
    """Return a dotted name's value before the cell runs; None if it is not known."""
    assigned = cell.names.assigned
    return value_of(node, {name: namespace[name] for name in namespace if name not in assigned})


def _mark(error: Exception, cell: CellSource) -> None:
    """Mark an error with the cell's line, and with the line in a function of another cell."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, TpunbError) or is_of_this_package(innermost):
        return
    places = lines_of(error)
    inside = [place.line for place in places if place.file == cell.filename]
    error.tpunb_lines = inside[:1] or [cell.body[-1].lineno]  # type: ignore[attr-defined]
    if places and places[0].file != cell.filename:
        file, line = places[0].file, places[0].line
        where = Path(file).name if Path(file).exists() else "another cell"
        text = linecache.getline(file, line).strip()
        error.tpunb_where = f"At line {line} of {where}: {text}"  # type: ignore[attr-defined]


def _call_at_the_end(cell: CellSource) -> ast.Call | None:
    """Return the call whose value ends a cell: shown, assigned, waited for, reduced or as it is."""
    last = cell.body[-1] if cell.body else None
    if not isinstance(last, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    node: ast.expr | None = last.value
    while (inner := _used_by(node)) is not None:
        node = inner
    return node if isinstance(node, ast.Call) else None


def _used_by(node: ast.expr | None) -> ast.expr | None:
    """Return the part of an expression that does the work, if the rest only uses its result."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return node.value
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Attribute):
        owner = _innermost(called.value)
        of_keras = isinstance(owner, ast.Call) and getattr(owner.func, "attr", "") in METHODS
        if isinstance(owner, ast.Call) and (called.attr in _WAIT or of_keras):
            return owner  # `model.predict(x).argmax()`
        uses = called.attr in _WAIT or (isinstance(owner, ast.Name) and owner.id in _NUMPY)
    else:
        uses = isinstance(called, ast.Name) and called.id in _SHOW
    first = _innermost(node.args[0]) if node.args else None
    return first if uses and isinstance(first, ast.Call) else None


def _innermost(node: ast.expr) -> ast.expr:
    """Return the innermost value whose attributes or items an expression reads."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def _what_is_called(
    call: ast.Call, cell: CellSource, namespace: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function that a cell calls last, with its positional and keyword arguments."""
    # Tracebacks need the source lines of the functions that the cell defines.
    lines = [f"{line}\n" for line in cell.lines]
    linecache.cache[cell.filename] = (len(cell.text), None, lines, cell.filename)

    called: list[Any] = []
    scope = {**namespace, _CALL: lambda fn, *args, **named: called.extend((fn, args, named))}
    instead = ast.Call(ast.Name(_CALL, ast.Load()), [call.func, *call.args], call.keywords)
    last = ast.copy_location(ast.Expr(instead), cell.body[-1])
    module = ast.fix_missing_locations(ast.Module([*cell.body[:-1], last], type_ignores=[]))
    exec(compile(module, cell.filename, "exec"), scope)

    fn, args, named = called
    return fn, args, named
