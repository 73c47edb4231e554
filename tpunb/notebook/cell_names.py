"""What tracebacks call the cells of `%%tpu_run`: as IPython calls the others, `Cell In[4]`."""

from __future__ import annotations

from typing import Any


def register(shell: Any, source: str) -> None:
    """Tells IPython which cell the code of a cell's functions belongs to.

    Args:
        shell: An IPython shell, whose present cell it is.
        source: The cell's body.
    """
    # IPython knows its own cells by this table alone; versions before 7.27 have none.
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    if isinstance(names, dict):
        from tpunb.cells.source import cell_filename

        names[cell_filename(source)] = shell.execution_count
