"""Functions traced as for XLA, to be examined and not to run."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import forget_gradients, registered_gradients
from tpunb.tensorflow.virtual.private_names import XLAControlFlowContext, ops, tpu_replication

_looked_at: contextvars.ContextVar[bool] = contextvars.ContextVar("tpunb_looked_at", default=False)

_CLUSTERS = types.SimpleNamespace(_outside_compilation_counter=0)
"""Counts the calls that are passed to `outside_compilation` outside a replica."""


class _CompilerContext(XLAControlFlowContext):  # type: ignore[misc]
    """A context in which all functions are traced as for XLA, even functions traced before."""

    def RequiresUniqueFunctionRetracing(self) -> bool:
        return True


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Trace functions inside as for XLA, even functions that were traced before.

    XLA's loops differ: their gradients keep as many values as the loop has steps. A function that
    is examined without a strategy counts as a replica's: the calls that it passes to
    `outside_compilation` run on the host.
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
            # Each of them would keep the examined graph alive.
            forget_gradients(registered_gradients() - registered)


def _find_or_take(find: Any) -> Any:
    try:
        return find()
    except ValueError:  # no replica is around
        if not _looked_at.get():
            raise
        return _CLUSTERS, ops.get_default_graph()


_HOST_CALLS = Replaced(tpu_replication, "_enclosing_tpu_context_and_graph", _find_or_take)
"""Inside this context, `outside_compilation` finds a replica in each function that is examined."""
