"""The cells of a lesson that have run: which of them has an answer, and which makes a name."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tpunb.cells.reading.names import bound_in
from tpunb.cells.reading.source import CellSource, parse_cell
from tpunb.notebook.magic_options import arguments_of
from tpunb.notebook.magics import TpuMagics
from tpunb.notebook.ran_cells import RanCell

_MAGIC = re.compile(r"\s*%%tpu_run\b([^\n]*)\n?")
_CHECK = re.compile(r"\s*# Check question (\d+)\b")


@dataclasses.dataclass(frozen=True)
class TpuCell:
    """A `%%tpu_run` cell that has run.

    Attributes:
        magic: The line of the magic.
        body: The text below it.
        source: The parsed body.
        data: The names of the datasets after `-d`.
        names: The names of a batch.
    """

    magic: str
    body: str
    source: CellSource
    data: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def reads(self) -> set[str]:
        """The names of the notebook that the cell reads."""
        own = {*self.source.names.reads, *self.source.later}
        return {*own, *(name.partition(".")[0] for name in self.data)} - set(self.names)


@functools.lru_cache(maxsize=256)
def tpu_cell(text: str) -> TpuCell | None:
    """Return the parts of a `%%tpu_run` cell; None for another cell."""
    magic = _MAGIC.match(text)
    if magic is None:
        return None
    given = arguments_of(TpuMagics.tpu_run, magic[1])
    line, body = magic[0].strip(), text[magic.end() :]
    return TpuCell(line, body, parse_cell(body), tuple(given.data), tuple(given.names))


def check_of(text: str) -> int | None:
    """Return the number of the question that a cell checks; None for another cell."""
    mark = _CHECK.match(text)
    return int(mark[1]) if mark else None


def is_marked(text: str, question: int) -> bool:
    """Return whether a cell has the line `# Question N`."""
    return re.search(rf"^# Question {question}\b", text, re.MULTILINE) is not None


def answer_cell(cells: Sequence[RanCell], question: int, names: Collection[str]) -> RanCell | None:
    """Return the latest cell with the answer to a question; None if no such cell has run.

    A cell has the answer if it has the line `# Question N`, or assigns one of the names.
    """
    return next(
        (
            cell
            for cell in reversed(cells)
            if check_of(cell.source) is None
            and (
                is_marked(cell.source, question)
                or any(assigns(cell.source, name) for name in names)
            )
        ),
        None,
    )


def maker_of(cells: Sequence[RanCell], name: str) -> TpuCell | None:
    """Return the `%%tpu_run` cell that assigned a name last; None if it was another cell."""
    for cell in reversed(cells):
        if not cell.error and check_of(cell.source) is None and assigns(cell.source, name):
            return tpu_cell(cell.source)
    return None


def assigns(text: str, name: str) -> bool:
    """Return whether a cell assigns a name, also if its code has an error."""
    bound = _bound_in(text)
    if bound is None:
        return re.search(rf"^\s*(?:def )?{name}\b\s*[=(\[]", text, re.MULTILINE) is not None
    return name in bound


def attribute_of(names: Mapping[str, Any], path: str) -> Any:
    """Return the value of a name, or of an attribute of its value, such as `"data.train"`."""
    first, *rest = path.split(".")
    return functools.reduce(getattr, rest, names[first])


@functools.lru_cache(maxsize=1024)
def _bound_in(text: str) -> frozenset[str] | None:
    """Return the names that a cell binds, also by an assignment to an item; None if unreadable."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        body = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError):
        return None
    return frozenset([*bound_in(body), *_items_in(body)])


def _items_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names whose items a cell assigns, such as `x` in `x["key"] = 1`."""
    for node in (node for statement in body for node in ast.walk(statement)):
        owner = node.value if isinstance(node, ast.Subscript) else None
        if isinstance(owner, ast.Name) and isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
            yield owner.id
