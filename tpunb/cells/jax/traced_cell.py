"""A cell as a function over all devices: `jax.jit` of a `jax.shard_map` of the cell's code."""

from __future__ import annotations

import ast
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from tpunb.cells.cell_errors import mark
from tpunb.cells.jax.arguments import PARTS, WHOLE, Arguments, Form, Slot, substituted
from tpunb.cells.jax.context import AXIS, ReplicaContext
from tpunb.cells.jax.outputs import Outputs
from tpunb.cells.jax.repeated_sums import line_of, repeated_sums
from tpunb.cells.settings import OutputOptions
from tpunb.cells.source import LAST, CellSource
from tpunb.cells.source_texts import keep_text, shown_as
from tpunb.errors import TpuWarning

_LAST = "__tpu_last__"


class TracedCell:
    """A cell for JAX with the values that it reads.

    Args:
        cell: The cell.
        namespace: The notebook's names.
        arguments: The values that the cell reads.
        mesh: The mesh of all devices.
        options: How results are combined.
        state: The names that a step passes on to the next. Their arrays are donated.
        needed: The names to return; None for all.

    Attributes:
        function: The function of the arguments' arrays, which returns the outputs' arrays.
        outputs: What the arrays mean in the notebook; known when the function was traced.
    """

    def __init__(
        self,
        cell: CellSource,
        namespace: dict[str, Any],
        arguments: Arguments,
        mesh: jax.sharding.Mesh,
        options: OutputOptions,
        state: Sequence[str],
        needed: Collection[str] | None = None,
    ) -> None:
        self.outputs = Outputs(cell, arguments, options, state, namespace, needed)
        self._cell, self._namespace, self._nests = cell, namespace, arguments.nests
        self._replicas = mesh.size
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

        def cell(*values: Any) -> Any:
            return self.outputs.taken_from(self.run_code(jax.tree.leaves(values)))

        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(name, kind) for name in names]
        cell.__name__ = "cell" if self.outputs.is_complete else "later_steps"
        cell.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cell.__code__ = cell.__code__.replace(co_filename=self._cell.filename, co_firstlineno=1)
        return cell

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
            raise
        self.outputs.define()
        self._warn_of_repeated_sums(traced.jaxpr)
        return traced

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
        names = {**self._namespace, **values}
        names.update(
            (name, value) for name, value in provided.items() if name in self._cell.provided
        )
        for name in self._cell.names.assigned:
            if name not in values:
                names.pop(name, None)  # the cell has not assigned it yet
        exec(_code(self._cell), names)
        if self._cell.has_value:
            names[LAST] = names.pop(_LAST)
        return names

    def _warn_of_repeated_sums(self, program: Any) -> None:
        for equation in repeated_sums(program.jaxpr):
            line = line_of(equation, self._cell.filename)
            warnings.warn_explicit(
                "This adds up values that are already the same on all replicas, because they were "
                f"added up before: the sum is {self._replicas} times as large, and a mean changes "
                "nothing. JAX itself adds up the gradient for an array that every replica has "
                "whole. For the mean of the replicas' gradients, take the gradient of the mean: "
                '`ctx.all_reduce("mean", loss)` in the function that is differentiated.',
                TpuWarning,
                self._cell.filename,
                1 if line is None else self._cell.first_line(line),
                registry={},
            )


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
