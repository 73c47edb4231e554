"""Progress messages during a compilation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tpunb.display.live_progress import CellDisplay

TRACING = "tracing the function"
LOWERING = "lowering the function to HLO"


@contextlib.contextmanager
def told(progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Gives what to call with each thing that is done next.

    Args:
        progress: What the caller wants it told to; None for a line in the notebook's cell,
            from two seconds on.
    """
    if progress is not None:
        yield progress
        return
    doing = [TRACING]
    with CellDisplay(lambda: doing[-1]):
        yield doing.append
