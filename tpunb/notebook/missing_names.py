"""Names that magics make, where they are used before or outside of these."""

from __future__ import annotations

__all__ = ["about_missing_name"]

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
