"""Records of a user's requests to logical devices, with their source lines.

Annotations belong to a traced replica function and are forgotten with it. Programs without
annotations pay nothing for this.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpunb.errors.code_problems import is_library
from tpunb.tensorflow.virtual.private_names import FuncGraph, ops
from tpunb.tensorflow.virtual.replicate.function_copies import LOGICAL_CORE
from tpunb.tensorflow.virtual.replicate.trace import TracingGraph
from tpunb.tpu.logical_placement import Annotation, Annotations

# Operations that are not worth a line, because they compute nothing.
_SILENT = frozenset({"Const", "Placeholder", "NoOp", "Identity", "ReadVariableOp", "XlaSharding"})


class Recorder:
    """The annotations of one strategy.

    Args:
        logical_devices: The number of logical devices of a replica.
    """

    def __init__(self, logical_devices: int) -> None:
        self._logical_devices = logical_devices
        self._tensors: weakref.WeakKeyDictionary[FuncGraph, dict[Annotation, None]]
        self._tensors = weakref.WeakKeyDictionary()
        self._variables: list[tuple[weakref.ref[Any], Annotation]] = []

    def all(self) -> Annotations:
        """Return the annotations of every function and variable that still exists."""
        self._variables = [(ref, note) for ref, note in self._variables if ref() is not None]
        unique = dict.fromkeys(note for _, note in self._variables)
        for notes in self._tensors.values():
            unique.update(notes)
        return Annotations(unique, self._logical_devices)

    def tensor(
        self,
        tensor: Any,
        annotated: Any,
        *,
        device: int | None = None,
        tiling: Iterable[int] | None = None,
    ) -> None:
        """Record where a tensor is placed; ignore tensors outside a replica function.

        Args:
            tensor: The tensor that the user annotates.
            annotated: The tensor that TensorFlow makes of it, on the user's line.
            device: The logical device that the tensor is assigned to.
            tiling: The number of parts along each axis. Without `device` and `tiling`, the tensor
                is replicated.
        """
        notes = self._of_traced_function()
        if notes is None:
            return
        kind = "split" if tiling is not None else "replicated" if device is None else "assigned"
        note = Annotation(
            name=_name(tensor),
            shape=_shape(tensor.shape),
            dtype=tensor.dtype.name,
            kind=kind,  # type: ignore[arg-type]
            device=None if device is None else int(device),
            tiling=None if tiling is None else tuple(int(parts) for parts in tiling),
            where=_where((f.filename, f.name, f.lineno) for f in annotated.op.traceback),
        )
        notes[note] = None

    @contextlib.contextmanager
    def operations(self, device: int) -> Iterator[None]:
        """Record the operations that a replica function makes for a logical device."""
        graph = ops.get_default_graph()
        notes = self._of_traced_function()
        if notes is None:
            yield
            return
        before = len(graph.get_operations())
        yield
        for operation in graph.get_operations()[before:]:
            if operation.type in _SILENT or LOGICAL_CORE not in operation.device:
                continue
            for tensor in operation.outputs:
                self.tensor(tensor, tensor, device=device)

    def variable(self, variable: Any, device: int | None) -> None:
        """Record where a variable is placed: on one logical device, or on each (None)."""
        note = Annotation(
            # Under SPMD, a name ends in "/r:" and the number of a replica.
            name=str(variable.name).partition(":")[0].removesuffix("/r"),
            shape=_shape(variable.shape),
            dtype=variable.dtype.name,
            kind="replicated" if device is None else "assigned",
            device=device,
            where=_where(_calling()),
            variable=True,
        )
        self._variables.append((weakref.ref(variable), note))

    def _of_traced_function(self) -> dict[Annotation, None] | None:
        graph = ops.get_default_graph()
        while graph is not None and not isinstance(graph, TracingGraph):
            graph = getattr(graph, "outer_graph", None)
        return None if graph is None else self._tensors.setdefault(graph, {})


def _name(tensor: Any) -> str:
    """Return a tensor's name; the replica function's own arguments are counted from 1."""
    graph = getattr(tensor, "graph", None)
    if isinstance(graph, TracingGraph):
        # The first of the graph's inputs is the replica's id.
        for number, argument in enumerate(graph.inputs):
            if argument is tensor:
                return f"argument {number}"
    return str(getattr(tensor, "name", "")).partition(":")[0]


def _shape(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def _calling() -> Iterator[tuple[str, str, int]]:
    """Return the file, function and line of each caller, from the outermost to the innermost."""
    frame = sys._getframe(1)
    callers = []
    while frame is not None:
        callers.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return iter(reversed(callers))


def _where(frames: Iterable[tuple[str, str, int]]) -> str:
    """Return the innermost line of the user's own code, as `"line 12 of step"`."""
    for file, function, line in reversed(list(frames)):
        if not is_library(file):
            return f"line {line}" + ("" if function == "<module>" else f" of {function}")
    return ""
