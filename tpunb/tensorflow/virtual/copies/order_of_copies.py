"""The order in which a graph uses the copies of a variable that were kept together.

Functions that were traced while the copies shared a resource take only the common handle. Once the
copies are separate, these functions find the other copies by name. TensorFlow's automatic control
dependencies do not see that use. So each use of a separate copy in a graph is ordered as though it
used the common handle, too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import FuncGraph, auto_control_deps

_COMMON = "_tpunb_common"
_CAPTURED = "_tpunb_captured"


def order_after(handle: Any, common: Any) -> None:
    """Order uses of a separate copy together with uses of the copies' former common handle."""
    setattr(handle, _COMMON, common)
    _register()


@functools.cache
def _register() -> None:
    """Make TensorFlow ask for the common handles from now on; this cannot be undone."""
    auto_control_deps.register_acd_resource_resolver(_uses_common_handles)


def _uses_common_handles(op: Any, reads: Any, writes: Any) -> bool:
    """Add the common handles to the handles that an operation reads or writes.

    Returns:
        Whether the operation uses more handles than were known.
    """
    has_more = False
    for touched, known in ((reads, (reads, writes)), (writes, (writes,))):
        common = [getattr(outermost(handle), _COMMON, None) for handle in touched]
        # If the common handle is not used, there is nothing to wait for.
        inner_handles = _captured(op.graph).by_outermost if any(map(tf.is_tensor, common)) else {}
        inner = [inner_handles[id(handle)] for handle in common if id(handle) in inner_handles]
        more = [handle for handle in inner if not any(handle in seen for seen in known)]
        touched.update(more)
        has_more |= bool(more)
    return has_more


class _Captured:
    """The tensors that a graph captures, each with its placeholder in the graph."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.count = len(pairs)
        self._pairs = pairs
        self.outer = {id(inner): outer for outer, inner in pairs}

    @functools.cached_property
    def by_outermost(self) -> Mapping[int, Any]:
        """The placeholders in the graph, by the ids of the tensors that they represent."""
        return {id(outermost(outer)): inner for outer, inner in self._pairs}


def _captured(graph: Any) -> _Captured:
    pairs = graph.captures
    known: _Captured | None = getattr(graph, _CAPTURED, None)
    if known is None or known.count != len(pairs):
        known = _Captured(pairs)
        setattr(graph, _CAPTURED, known)
    return known


def outermost(tensor: Any) -> Any:
    """Return a tensor as it was before graphs captured it."""
    while isinstance(graph := getattr(tensor, "graph", None), FuncGraph):
        known = _captured(graph).outer
        if id(tensor) not in known:
            return tensor
        tensor = known[id(tensor)]
    return tensor
