"""A Keras model or layer as a tree: its layers, their variables, and where the copies are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpunb.display.describe import jax_values, tensorflow_values
from tpunb.display.describe.connection import Device, device_of
from tpunb.display.describe.values import guarded, replica_value, short_repr
from tpunb.machine.keras_internals import layers_of

MAX_LAYERS = 512
"""The largest number of a model's layers that are described."""

_MAX_DEPTH = 16
_COMPARED_BYTES = 2**30
"""The largest number of bytes of a model's copies that are read to compare them."""


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """A variable of a layer.

    Attributes:
        name: The variable's name in the layer, such as `"kernel"`.
        dtype: The dtype, such as `"float32"`.
        shape: The shape; None for an axis of unknown size.
        trainable: Whether an optimizer changes the variable.
        devices: The cores or devices of the copies, by replica; a single device for a variable
            that is not distributed, and none if they are unknown.
        differs: The replicas whose copy differs from the first copy. None if the copies are
            not compared, because there is only one copy, the copies are parts of the variable,
            or they are too large to read.
        cut: How a variable is cut over devices, if it is.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    trainable: bool
    devices: tuple[str, ...] = ()
    differs: tuple[int, ...] | None = None
    cut: str = ""

    @property
    def parameters(self) -> int:
        """The number of the variable's elements."""
        return math.prod(side or 0 for side in self.shape)


@dataclass(frozen=True, slots=True)
class LayerNode:
    """A layer with its variables and the layers in it.

    Attributes:
        name: The layer's name in the model.
        type_name: The layer's class.
        output: The shape of the layer's result, such as `"[None, 128]"`; empty if unknown.
        variables: The variables that do not belong to the layers in it.
        layers: The layers in it.
        shared: Whether the layer is described above already, at its first use.
        omitted: The number of layers in it that are left out.
    """

    name: str
    type_name: str
    output: str = ""
    variables: tuple[ModelVariable, ...] = ()
    layers: tuple[LayerNode, ...] = ()
    shared: bool = False
    omitted: int = 0

    def all_variables(self) -> list[ModelVariable]:
        """Return the variables of the layer and of all layers in it, without repetitions."""
        inner = (variable for layer in self.layers for variable in layer.all_variables())
        return [*self.variables, *inner]


def is_model(value: Any) -> bool:
    """Return whether a value is a layer or a model of Keras 3 or tf_keras."""
    return any(
        kind.__name__ == "Layer" and kind.__module__.partition(".")[0] in ("keras", "tf_keras")
        for kind in type(value).__mro__
    )


def describe_model(model: Any, cores: Mapping[Device | None, int] | None = None) -> LayerNode:
    """Describe a model or a layer, without building it or running it.

    Copies are compared if they have at most 1 GiB together.

    Args:
        model: A layer or a model of Keras 3 or tf_keras.
        cores: The core of each device, as `cores_by_device` returns it. Without it, the
            description names devices instead of cores.
    """
    return _Reader(cores or {}).node(model, depth=0)


class _Reader:
    """The reading of one model: known layers and variables, and the bytes left to read."""

    def __init__(self, cores: Mapping[Device | None, int]) -> None:
        self._cores = cores
        self._layers: set[int] = set()
        self._variables: set[int] = set()
        self._bytes = _COMPARED_BYTES

    def node(self, layer: Any, depth: int) -> LayerNode:
        name, kind = str(getattr(layer, "name", "")), type(layer).__name__
        if id(layer) in self._layers:
            return LayerNode(name, kind, shared=True)
        self._layers.add(id(layer))
        layers = guarded(lambda: list(layer.layers), None)
        if layers is None:
            # This is the only way that Keras 3 and tf_keras have in common.
            layers = guarded(lambda: layers_of(layer, recursive=False), [])
        submodels = [
            sublayer
            for sublayer in layers
            if is_model(sublayer) and type(sublayer).__name__ != "InputLayer"
        ]
        inner_weights = {id(weight) for submodel in submodels for weight in _weights(submodel)}
        known = self._variables | inner_weights
        new = [weight for weight in _weights(layer) if id(weight) not in known]
        self._variables.update(map(id, new))
        nodes: list[LayerNode] = []
        for submodel in submodels if depth < _MAX_DEPTH else ():
            if len(self._layers) >= MAX_LAYERS:
                break
            nodes.append(self.node(submodel, depth + 1))
        return LayerNode(
            name,
            kind,
            guarded(lambda: _output_shape(layer), ""),
            tuple(map(self._variable, new)),
            tuple(nodes),
            omitted=len(submodels) - len(nodes),
        )

    def _variable(self, weight: Any) -> ModelVariable:
        dtype = getattr(weight.dtype, "name", None) or str(weight.dtype)
        shape = guarded(lambda: tuple(weight.shape), ())
        name = str(weight.name).rpartition("/")[2].partition(":")[0]
        known = ModelVariable(name, dtype, shape, bool(weight.trainable))
        return guarded(lambda: replace(known, **self._placed(weight, shape)), known)

    def _placed(self, weight: Any, shape: tuple[int | None, ...]) -> dict[str, Any]:
        """Return the devices of a variable's copies, with their differences or the cut."""
        arrays = jax_values.parts_of(weight)
        if arrays is not None:
            devices = jax_values.devices_of(weight)
            if any(part.shape != shape for part in arrays):
                cut = jax_values.type_name(weight).partition(" cut ")[2]
                return {"devices": devices, "cut": f"cut {cut}"}
            return {"devices": devices, "differs": self._differing(arrays)}
        copies = tensorflow_values.distributed_components(weight)
        if copies is None:
            device = getattr(getattr(weight, "value", weight), "device", "")
            return {"devices": (self._place(device),) if device else ()}
        devices = tuple(self._place(copy.device) for copy in copies)
        return {"devices": devices, "differs": self._differing(copies)}

    def _place(self, device: str) -> str:
        """Return a device's core, or the device's kind and number."""
        place = device_of(device)
        if place in self._cores:
            return f"core {self._cores[place]}"
        if place is None:
            return device.rpartition("/")[2]
        task, kind, number = place
        return f"{kind}:{number}" if not task else f"task {task} {kind}:{number}"

    def _differing(self, copies: Sequence[Any]) -> tuple[int, ...] | None:
        """Return the positions of copies that differ from the first copy; None if unknown."""
        if len(copies) < 2:
            return None
        size = sum(
            math.prod(copy.shape) * (getattr(copy.dtype, "size", 0) or copy.dtype.itemsize)
            for copy in copies
        )
        if size > self._bytes:
            return None
        self._bytes -= size
        values = [
            replica_value(tensorflow_values.read(copy), preview=None).fingerprint for copy in copies
        ]
        return tuple(place for place, value in enumerate(values) if value != values[0])


def _weights(layer: Any) -> list[Any]:
    weights: list[Any] = guarded(lambda: list(layer.weights), [])
    return weights


def _output_shape(layer: Any) -> str:
    output = layer.output
    shapes = [tensor.shape for tensor in (output if isinstance(output, list | tuple) else [output])]
    return ", ".join(short_repr(list(shape)) for shape in shapes)
