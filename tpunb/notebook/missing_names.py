"""Names that magics make, where they are used before or outside of these."""

from __future__ import annotations

import re
from collections.abc import Iterable

from IPython.core.error import UsageError

from tpunb.errors import nearest

__all__ = ["about_missing_magic", "about_missing_name"]

_NO_MAGIC = re.compile(r"magic (?:function )?`(%+)(\w+)` not found")

_INSIDE = frozenset({"replica_id", "num_replicas", "ctx"})
_OF_CONNECTING = frozenset({"strategy", "resolver", "topology", "connection"})


def about_missing_name(error: BaseException, *, connected: bool) -> str | None:
    """Says where a name comes from that a cell has missed; None for any other error.

    Args:
        error: What a cell has raised.
        connected: Whether there is a connection.
    """
    if type(error) is not NameError:
        return None
    name = error.name
    if name in _INSIDE:
        return f"`{name}` exists inside of `%%tpu_run` cells: make that the cell's first line."
    if name in _OF_CONNECTING and not connected:
        return f"`%tpu_connect` makes `{name}`, and nothing is connected."
    if name == "history":
        return (
            "A `%%tpu_run` cell with `-p` makes `history`; the last run's is always "
            "`tpunb.history`, also that of `fit` with LiveCurves."
        )
    return None


def about_missing_magic(error: BaseException, magics: Iterable[str]) -> str | None:
    """Says which of our magics was meant where none has the name; None for any other error.

    Args:
        error: What a cell has raised.
        magics: The names of our magics.
    """
    missing = _NO_MAGIC.search(str(error)) if isinstance(error, UsageError) else None
    if missing is None or not missing[2].startswith("tpu"):
        return None
    near = nearest(missing[2], magics, most=1)
    return f"Did you mean `{missing[1]}{near[0]}`?" if near else None
