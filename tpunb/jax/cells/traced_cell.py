"""A cell as a function over all devices: `jax.jit` of a `jax.shard_map` of the cell's code."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import operator
import types
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from tpunb._util.interrupts import uninterrupted
from tpunb.cells.reading.cell_errors import mark
from tpunb.cells.reading.reached import Contents, Reached
from tpunb.cells.reading.source import LAST, CellSource
from tpunb.cells.reading.source_texts import keep_text, shown_as
from tpunb.cells.settings import OutputOptions
from tpunb.errors import CellError, TpuWarning
from tpunb.jax.cells.arguments import PARTS, WHOLE, Arguments, Form, Slot, flattened, substituted
from tpunb.jax.cells.cache_key import ProgramKey
from tpunb.jax.cells.context import AXIS, ReplicaContext
from tpunb.jax.cells.outputs import Outputs, holds_traced
from tpunb.jax.cells.shared_names import SharedNames, in_context
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.table import findings_in_cell

_LAST = "__tpu_last__"
_UNBOUND_AXIS = "101"
"""The catalogue's entry for a collective over an axis that does not exist where it is called."""

_LOST = (
    "The cell changes `{name}` in place, and the change stays in the cell: each replica has a copy "
    "of it. Assign it in the cell's last line to keep it: `{name} = {name}`."
)


class TracedCell:
    """A cell for JAX with the values that it reads.

    Args:
        cell: The cell.
        namespace: The notebook's names.
        arguments: The values that the cell reads.
        mesh: The mesh of all devices.
        options: How results are combined.
        shared: The names that the cell shares with functions of the notebook.
        state: The names that a step passes on to the next. Their arrays are donated.
        needed: The names to return; None for all.

    Attributes:
        function: The function of the arguments' arrays, which returns the outputs' arrays.
        outputs: What the arrays mean in the notebook; known when the function was traced.
        key: The key of the program; known when the function was traced.
    """

    def __init__(
        self,
        cell: CellSource,
        namespace: dict[str, Any],
        arguments: Arguments,
        mesh: jax.sharding.Mesh,
        options: OutputOptions,
        shared: SharedNames,
        state: Sequence[str],
        needed: Collection[str] | None = None,
    ) -> None:
        self.outputs = Outputs(cell, arguments, options, shared.assigned, state, namespace, needed)
        self.key: ProgramKey | None = None
        self._shared = shared
        self._mark = object() if shared.read else None
        self._latest = [self]  # for all cells that have the same program
        self._cell, self._namespace, self._nests = cell, namespace, arguments.nests
        self._replicas = mesh.size
        self._changed: list[str] = []
        self._is_step = bool(state)
        specs = arguments.by_name(
            [WHOLE if form is Form.WHOLE else PARTS for form in arguments.forms]
        )
        function = self._function(list(specs))
        self.function = jax.jit(
            jax.shard_map(
                function, mesh=mesh, in_specs=tuple(specs.values()), out_specs=self.outputs.specs
            ),
            donate_argnums=[place for place, name in enumerate(specs) if name in state],
        )

    def _function(self, names: Sequence[str]) -> Callable[..., Any]:
        """Return the function of one replica, whose arguments have the names of the notebook."""
        latest = self._latest

        def cell(*values: Any) -> Any:
            traced = latest[0]  # JAX traces again if, for example, its caches were cleared
            return traced.outputs.taken_from(traced.run_code(jax.tree.leaves(values)))

        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(name, kind) for name in names]
        cell.__name__ = "cell" if self.outputs.is_complete else "later_steps"
        cell.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cell.__code__ = cell.__code__.replace(co_filename=self._cell.filename, co_firstlineno=1)
        return cell

    def take_program_of(self, other: TracedCell) -> None:
        """Take the compiled program of a cell that has the same key."""
        self.function, self._mark, self._latest = other.function, other._mark, other._latest
        self._latest[0] = self

    def in_context(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which JAX traces the cell, and finds its trace again."""
        return in_context(self._mark)

    def trace(self, arguments: Arguments) -> Any:
        """Trace the cell; return the traced call.

        Raises:
            Exception: Any error that the cell raises, with `tpunb_lines`: the cell's lines that
                it came from.
        """
        try:
            with shown_as("\n".join(self._cell.lines), self._cell):
                traced = self.function.trace(*arguments.values)
        except Exception as error:
            mark(error, self._cell)
            if _names_other_axis(error):
                raise _other_axis(error) from error
            raise
        self.key = ProgramKey(traced.jaxpr)
        self.outputs.define()
        self._warn_of_lost_changes()
        return traced

    def warn_of_findings(self, program: Any) -> None:
        """Warn of what the cell's program costs although it runs."""
        if not self.outputs.is_complete:
            return  # the complete program has the same lines
        call = Call("the cell", program, self._replicas, is_cell=True, is_step=self._is_step)
        for each in findings_in_cell(call, self._cell.filename):
            self._warn(f"{each.reason} {each.fix}", each.line)

    def run_code(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Run the cell's code on one replica; return its names."""

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, Slot):
                return leaf
            return arrays[leaf.index][0] if leaf.form is Form.NUMBER else arrays[leaf.index]

        values = {name: substituted(nest, fill) for name, nest in self._nests.items()}
        provided = {
            "ctx": ReplicaContext(self._replicas),
            "num_replicas": self._replicas,
            "replica_id": jax.lax.axis_index(AXIS),
        }
        provided = {name: value for name, value in provided.items() if name in self._cell.provided}
        kept = values.keys() & self._namespace.keys() - {*self._shared.assigned}
        before = {name: flattened(values[name])[0] for name in kept}
        contents = Contents(self._owners(), self._namespace)
        try:
            with self._shared.traced(self._namespace, {**values, **provided}) as names:
                exec(_code(self._cell), names)
                taken = names.taken()
        finally:
            with uninterrupted():
                lost = contents.put_back(_is_traced)
        if lost:
            raise self._refused(lost[0])
        self._changed = [name for name in kept if _is_changed(before[name], values[name])]
        if self._cell.has_value:
            taken[LAST] = taken.pop(_LAST)
        return taken

    def _owners(self) -> list[tuple[str, Any]]:
        """Return the objects of the notebook that the cell may change; of trees it has copies."""
        names = self._namespace
        values = [(name, names[name]) for name in self._nests if name in names]
        leaves = [(n, leaf) for n, nest in self._nests.items() for leaf in flattened(nest)[0]]
        opaque = [(n, leaf) for n, leaf in leaves if not isinstance(leaf, Slot | dict | list)]
        return Reached([*values, *opaque], names).owners

    def _refused(self, path: str) -> CellError:
        """Return the error for a traced array that the notebook's objects would keep."""
        refused = CellError(
            f"The cell stores an array in `{path}`, which has no value outside of the cell. "
            f"Nothing has run, and `{path}` is as it was.",
            fix="Assign the array to a name in the cell, and store it in a cell below. What steps "
            "pass on is a name, or a tree of arrays such as a dict.",
        )
        line = self._first_mention(path.partition(".")[0].partition("[")[0])
        refused.tpunb_lines = [] if line is None else [line]  # type: ignore[attr-defined]
        return refused

    def _warn_of_lost_changes(self) -> None:
        for name in self._changed if self.outputs.is_complete else ():
            self._warn(_LOST.format(name=name), self._first_mention(name))

    def _first_mention(self, name: str) -> int | None:
        named = (node for node in self._cell.nodes if isinstance(node, ast.Name))
        return min((node.lineno for node in named if node.id == name), default=None)

    def _warn(self, message: str, line: int | None) -> None:
        number = 1 if line is None else self._cell.first_line(line)
        warnings.warn_explicit(message, TpuWarning, self._cell.filename, number, registry={})


def _names_other_axis(error: Exception) -> bool:
    """Return whether a collective names an axis that does not exist where it is called.

    JAX 0.10 raises an AssertionError without a message for it, and JAX 0.7 a KeyError.
    """
    from tpunb.errors.explain import explain  # loads the catalogue, which is large

    known = explain(error)
    return known is not None and known.code == _UNBOUND_AXIS and not isinstance(error, TypeError)


def _other_axis(error: Exception) -> CellError:
    """Return the error for a collective over another axis, with the lines of JAX's error."""
    refused = CellError(
        f'A collective names an axis that does not exist here. The axis of a cell is "{AXIS}".',
        fix=f'jax.lax.psum(x, "{AXIS}"), or ctx.all_reduce("sum", x).',
    )
    refused.tpunb_lines = error.tpunb_lines  # type: ignore[attr-defined]
    return refused


def _is_traced(value: Any) -> bool:
    """Return whether a value is, or contains, an array that exists only in the trace."""
    return isinstance(value, jax.core.Tracer) or holds_traced(value)


def _is_changed(before: Sequence[Any], value: Any) -> bool:
    """Return whether the cell has changed a tree that it got."""
    after, _ = flattened(value)
    return len(before) != len(after) or not all(map(operator.is_, before, after))


@functools.lru_cache(maxsize=64)
def _code(cell: CellSource) -> types.CodeType:
    """Return the code of a cell, which assigns the value of its last expression to a name."""
    body = list(cell.body)
    if cell.last is not None:
        target = ast.Name(_LAST, ast.Store())
        assignment = ast.Assign([target], cell.last.value)
        body[-1] = ast.fix_missing_locations(ast.copy_location(assignment, cell.last))
    module = ast.Module(body, type_ignores=[])
    code = compile(module, cell.filename, "exec", dont_inherit=True)
    keep_text(cell, code, *cell.definitions.values())
    return code
