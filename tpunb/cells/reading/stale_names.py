"""The refusal of cells whose functions would read a name before the cell has changed it.

TensorFlow gets a cell as a function, whose names are its own. The notebook's functions read the
notebook's names, which the cell changes only when it has run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpunb.cells.reading.names import bound_in
from tpunb.cells.reading.reached import Reached
from tpunb.cells.reading.source import CellSource, StepSource
from tpunb.errors import CellError


@dataclass(frozen=True)
class StaleName:
    """A name that the cell assigns, and that a function of the notebook uses.

    Attributes:
        name: The name.
        function: The function.
        is_written: Whether the function assigns it.
        is_late: Whether the function may be called after the cell has assigned it.
    """

    name: str
    function: str
    is_written: bool
    is_late: bool

    def refuse(self) -> None:
        """Refuse the cell.

        Raises:
            CellError: Always.
        """
        if self.is_written:
            raise CellError(
                f"`{self.function}` assigns `{self.name}` by `global`, and a cell on the replicas "
                "would not see it.",
                fix=f"Return the value, and assign it in the cell: {self.name} = …",
            )
        raise CellError(
            f"`{self.function}` reads `{self.name}`, which the cell assigns: the function would "
            "get the former value.",
            fix=f"Pass `{self.name}` to `{self.function}` as an argument.",
        )


def stale_names(
    cell: StepSource, values: Mapping[str, Any], fed: frozenset[str], namespace: dict[str, Any]
) -> list[StaleName]:
    """Return the names that a cell changes, and that functions of the notebook use.

    Args:
        cell: The cell.
        values: The values that the cell reads, by name.
        fed: The names of the batch, and of what steps pass on.
        namespace: The notebook's names.
    """
    if not isinstance(cell, CellSource):
        return []
    imports = [node for node in cell.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    changed = {*cell.names.assigned, *fed} - {*bound_in(imports)}
    found = []
    for root, value in values.items():
        reached = Reached([(root, value)], namespace)
        for name in sorted(reached.read.keys() & changed):
            late = name in fed - {*cell.names.assigned} or _is_late(cell, root, name)
            found.append(StaleName(name, reached.read[name], False, late))
        for name in sorted(reached.written.keys() & {*changed, *cell.names.reads}):
            found.append(StaleName(name, reached.written[name], True, True))
    return found


def _is_late(cell: CellSource, root: str, name: str) -> bool:
    """Return whether a cell may use one name after it has assigned another."""
    bound = min(_bindings(cell, name), default=(0, 0))
    if any((node.lineno, node.col_offset) >= bound for node in _uses(cell.nodes, root)):
        return True
    again = (ast.For, ast.While, ast.FunctionDef, ast.Lambda)
    return any(
        any(_uses(ast.walk(node), root))
        and (isinstance(node, ast.FunctionDef | ast.Lambda) or name in bound_in([node]))
        for node in cell.nodes
        if isinstance(node, again)
    )


def _bindings(cell: CellSource, name: str) -> Iterator[tuple[int, int]]:
    """Yield the places in a cell from which a name may have another value."""
    for node in cell.nodes:
        if isinstance(node, ast.stmt) and name in bound_in([node]):
            is_block = hasattr(node, "body")
            yield (
                (node.lineno, node.col_offset)
                if is_block
                else (node.end_lineno or 0, node.end_col_offset or 0)
            )


def _uses(nodes: Any, name: str) -> Iterator[ast.Name]:
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node
