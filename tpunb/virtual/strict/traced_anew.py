"""Functions traced to be looked at, as for XLA, and not to be run."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterator
from typing import Any

from tpunb.virtual._tensorflow import XLAControlFlowContext, ops, tpu_replication
from tpunb.virtual.graph.tensorflow_graphs import forget_gradients, registered_gradients
from tpunb.virtual.patch.patch_tools import Replaced

_looked_at: contextvars.ContextVar[bool] = contextvars.ContextVar("tpunb_looked_at", default=False)

_CLUSTERS = types.SimpleNamespace(_outside_compilation_counter=0)
"""Counts what is given to `outside_compilation` where there is no replica."""


class _CompilerContext(XLAControlFlowContext):  # type: ignore[misc]
    """Inside, everything is traced as for XLA, and what was traced before is traced again."""

    def RequiresUniqueFunctionRetracing(self) -> bool:
        return True


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Traces functions inside as XLA has them traced, those too that were traced before.

    XLA's loops differ: their gradients keep as many values as the loop has steps. A function
    that is looked at without a strategy is taken for a replica's: what it gives to
    `outside_compilation` is the host's.
    """
    token = _looked_at.set(True)
    around = _CompilerContext()
    registered = registered_gradients()
    with _HOST_CALLS:
        around.Enter()
        try:
            yield
        finally:
            around.Exit()
            _looked_at.reset(token)
            # Each would keep alive the graph that was looked at.
            forget_gradients(registered_gradients() - registered)


def _find_or_take(find: Any) -> Any:
    try:
        return find()
    except ValueError:  # there is no replica
        if not _looked_at.get():
            raise
        return _CLUSTERS, ops.get_default_graph()


_HOST_CALLS = Replaced(tpu_replication, "_enclosing_tpu_context_and_graph", _find_or_take)
"""Inside, `outside_compilation` finds a replica in each function that is looked at."""
