"""The collectives that the last cell called, with the values that it called them on.

A cell keeps the values of names, and not those of expressions. So only calls on a name or on a
number are known: `ctx.all_reduce("sum", x)`, and not `ctx.all_reduce("sum", 2 * x)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpunb.cells.reading.source import StepSource
from tpunb.errors import TpunbError

_METHODS = {
    "all_reduce": ("reduction", "value"),
    "all_gather": ("value", "axis"),
    "ppermute": ("value", "pairs"),
    "all_to_all": ("value", "axis", "concat_axis"),
}
"""The arguments of the methods of `ctx`, in their order."""

_OTHER_KEYWORDS = {
    "reduce_op": "reduction",
    "operation": "reduction",
    "split_axis": "axis",
    "input": "value",
    "source_target_pairs": "pairs",
    "x": "value",
    "perm": "pairs",
}

_FUNCTIONS = {
    "psum": ("value", ""),
    "pmean": ("value", ""),
    "pmax": ("value", ""),
    "pmin": ("value", ""),
    "ppermute": ("value", "", "pairs"),
    "CollectivePermute": ("value", "pairs"),
}
"""The arguments of functions of `jax.lax` and `tf.raw_ops`; an empty name is ignored."""

_SAME = {"CollectivePermute": "ppermute", "collective_permute": "ppermute"}
_REDUCTIONS = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min"}
_WORDS = tuple(_METHODS) + tuple(_FUNCTIONS)


@dataclass(frozen=True)
class CalledCollective:
    """A call of a collective.

    Attributes:
        value: The value that it was called on.
        options: The arguments for `effect_of`.
        code: The code of the call.
        replicas: The number of replicas.
        result: The value of the name that the call was assigned to; None if it is not known.
    """

    value: Any
    options: dict[str, Any]
    code: str
    replicas: int
    result: Any = None

    def compare(self, computed: list[Any], parts: Callable[[Any, int], list[Any]]) -> None:
        """Check that the cell's own result is the computed one.

        Raises:
            TpunbError: It is another, so a picture would not show what the cell did.
        """
        if self.result is None:
            return
        import numpy as np  # loading the extension would take twice as long with it

        own = parts(self.result, self.replicas)
        equal = (
            np.allclose(np.asarray(a, float), np.asarray(b, float), 1e-2, 1e-5, equal_nan=True)
            for a, b in zip(own, computed, strict=True)
            if np.shape(a) == np.shape(b)
        )
        if sum(equal) != len(computed):
            raise TpunbError(
                f"The values of `{self.code}` are not those of the cell's result.",
                fix="Run the cell again, or give the values.",
            )


@dataclass(frozen=True)
class _LastCell:
    """The last cell that ran.

    Attributes:
        source: The cell.
        values: The values of its names, before and after the run.
        replicas: The number of replicas.
    """

    source: StepSource
    values: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 0


_last: list[_LastCell] = []


def values_read(
    source: StepSource, namespace: Mapping[str, Any], hidden: Collection[str]
) -> dict[str, Any]:
    """Return the notebook's values that collectives of a cell are called on, before it runs.

    Args:
        source: The cell.
        namespace: The notebook's names.
        hidden: The cell's names for the parts of a batch, which hide the notebook's.
    """
    names = _names(source) - set(hidden)
    return {name: namespace[name] for name in names if name in namespace}


def remember_cell(
    source: StepSource, before: Mapping[str, Any], assigned: Mapping[str, Any], replicas: int
) -> None:
    """Remember a cell that has run, with the values of its collectives only.

    Args:
        source: The cell.
        before: The values that `values_read` returned.
        assigned: The values of the names that it assigned.
        replicas: The number of replicas.
    """
    names = _names(source)
    own = {name: value for name, value in assigned.items() if name in names}
    _last[:] = [_LastCell(source, {**before, **own}, replicas)]


def forget_cell() -> None:
    """Forget the last cell, and its values."""
    _last.clear()


def last_collective(operation: str) -> CalledCollective:
    """Return the last call of a collective in the last cell.

    Raises:
        TpunbError: There is none, or the cell does not keep its value.
    """
    if not _last:
        raise TpunbError(
            "There are no values: no %%tpu_run cell has run.",
            fix=f'Give them: tpunb.draw.collective("{operation}", [10, 20, 30, 40])',
        )
    cell = _last[0]
    wanted = _SAME.get(operation, str(operation).replace("-", "_"))
    calls = [call for call in _calls(cell.source) if _SAME.get(_name(call), _name(call)) == wanted]
    if not calls:
        raise TpunbError(
            f"The last %%tpu_run cell does not call `{operation}`.",
            fix="Draw it after the cell that calls it, or give the values.",
        )
    return _called(cell, max(calls, key=lambda call: (call.lineno, call.col_offset)))


def _names(source: StepSource) -> set[str]:
    """Return the names that collectives of a cell are called on, or assigned to."""
    if not any(word in source.text for word in _WORDS):
        return set()
    calls = list(_calls(source))
    nodes = [
        node
        for call in calls
        for node in (*call.args, *(keyword.value for keyword in call.keywords))
    ]
    nodes += [
        target
        for node in source.body
        if isinstance(node, ast.Assign) and node.value in calls
        for target in node.targets
    ]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _calls(source: StepSource) -> Iterator[ast.Call]:
    """Yield the calls of collectives in a cell."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_method = getattr(node.func.value, "id", "") == "ctx"
            if node.func.attr in (_METHODS if is_method else _FUNCTIONS):
                yield node


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def _called(cell: _LastCell, call: ast.Call) -> CalledCollective:
    assert isinstance(call.func, ast.Attribute)
    is_method = getattr(call.func.value, "id", "") == "ctx"
    order = (_METHODS if is_method else _FUNCTIONS)[call.func.attr]
    arguments = dict(zip(order, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is not None:
            arguments[_OTHER_KEYWORDS.get(keyword.arg, keyword.arg)] = keyword.value
    code = ast.unparse(call)
    options = {
        name: _known(cell, node, call, code)
        for name, node in arguments.items()
        if name in ("reduction", "axis", "concat_axis", "pairs")
    }
    if isinstance(reduction := options.get("reduction"), str):
        options["reduction"] = reduction.lower()
    value = _known(cell, arguments["value"], call, code)
    return CalledCollective(value, options, code, cell.replicas, _result(cell, call))


def _known(cell: _LastCell, node: ast.expr, call: ast.Call, code: str) -> Any:
    """Return the value of an argument, if it is a name or a literal.

    Raises:
        TpunbError: It is another expression, or a name whose value is not kept.
    """
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if not isinstance(node, ast.Name):
        raise TpunbError(
            f"The cell keeps the values of names, and not the value of `{ast.unparse(node)}` in "
            f"`{code}`.",
            fix=f"Assign it: `part = {ast.unparse(node)}`, then call the collective on `part`.",
        )
    if _assigned_later(cell.source, node.id, call):
        raise TpunbError(
            f"The cell gives `{node.id}` another value at or after `{code}`.",
            fix="Assign the result to another name.",
        )
    if node.id not in cell.values:
        raise TpunbError(
            f"The cell does not keep `{node.id}`, which `{code}` reads.",
            fix=f"Assign it to a name in the cell, such as `part = {node.id}`, and use that.",
        )
    return cell.values[node.id]


def _assigned_later(source: StepSource, name: str, call: ast.Call) -> bool:
    """Return whether a name is bound at a call's statement or after it, or in a loop around it."""
    statement = next(
        (node for node in source.body if node.lineno <= call.lineno <= (node.end_lineno or 0)), None
    )
    first = statement.lineno if statement is not None else call.lineno
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Store | ast.Del)
        and node.lineno >= first
        for node in source.nodes
    )


def _result(cell: _LastCell, call: ast.Call) -> Any:
    """Return the value of the name that a call was assigned to, if it was and keeps it."""
    for node in cell.source.body:
        if isinstance(node, ast.Assign) and node.value is call and len(node.targets) == 1:
            name = getattr(node.targets[0], "id", "")
            return None if _bound_twice(cell.source, name) else cell.values.get(name)
    return None


def _bound_twice(source: StepSource, name: str) -> bool:
    stores = [
        node
        for node in source.nodes
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    return len(stores) > 1
