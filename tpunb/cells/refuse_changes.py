"""What a cell may not do to the values that it takes from the notebook."""

from __future__ import annotations

from typing import Any

from ..errors import CellError
from .symbolic import holds_symbolic

__all__ = ["refuse_change", "refuse_symbols"]


def refuse_change(name: str, before: list[Any], after: list[Any]) -> None:
    """Refuses a nest of tensors whose leaves a trace has replaced.

    Raises:
        CellError: It has.
    """
    if len(before) == len(after) and all(x is y for x, y in zip(before, after, strict=True)):
        return
    raise CellError(
        f"The cell changes `{name}` in place, which the notebook would not see.",
        fix=f"Assign a new value: `{name} = ...`; it comes back to the notebook.",
    )


def refuse_symbols(name: str, container: Any) -> None:
    """Refuses a list or dict of the notebook's that holds tensors of a trace.

    Raises:
        CellError: It does.
    """
    if holds_symbolic(container):
        raise CellError(
            f"The cell puts a tensor of the replicas into `{name}`, which belongs to the notebook.",
            fix=f"Assign the tensor to a name, and put that into `{name}` in the next cell.",
        )
