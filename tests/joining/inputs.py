"""Valid inputs and attributes of each operation, for a given rank and sizes.

Most operations take tensors of one shape, or shapes that broadcast. A table lists the others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """An input of an operation.

    Attributes:
        shape: Its shape.
        dtype: Its type; None for the type in the operation's definition.
        values: Its values, if they are not random.
        below: The exclusive upper bound of random non-negative integers.
        variable: Whether it is the handle of a variable.
        elements: Whether the tensor's rows become the elements of a tensor list.
        finite: Whether random values are never infinite or NaN.
    """

    shape: Shape
    dtype: Any = None
    values: Any = None
    below: int | None = None
    variable: bool = False
    elements: bool = False
    finite: bool = False


def fixed(values: Any) -> Slot:
    """An input with fixed values, such as an axis or a shape."""
    array = np.asarray(values, np.int32)
    return Slot(array.shape, values=array)


Inputs = tuple[Sequence[Slot], Mapping[str, Any]]
"""The inputs of an operation and the attributes that they need."""

Maker = Callable[[Shape, Mapping[str, Any]], Iterator[Inputs]]
"""Makes inputs from a shape and the values of boolean and enumerated attributes."""


def inputs_of(op: str, count: int, shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
    """Inputs for an operation.

    Args:
        op: The operation.
        count: The number of inputs in its definition; 0 if it takes a list.
        shape: The shape from which the inputs are derived.
        attributes: The operation's boolean and enumerated attributes.
    """
    if op in _MAKERS:
        yield from _MAKERS[op](shape, attributes)
    elif count == 0:
        for number in (1, 2, 3):
            yield [Slot(shape)] * number, {}
    else:
        for shapes in _broadcasting(shape, count):
            yield [Slot(each) for each in shapes], {}


def _broadcasting(shape: Shape, count: int) -> Iterator[Sequence[Shape]]:
    """Lists of shapes that broadcast to the given shape."""
    yield [shape] * count
    if count > 1 and shape:
        for other in dict.fromkeys([shape[1:], (1, *shape[1:]), (*shape[:-1], 1)]):
            for place in range(count):
                yield [other if k == place else shape for k in range(count)]
        if len(shape) > 1:
            yield [(shape[0], *[1] * (len(shape) - 1)), (1, *shape[1:]), shape][:count]


def _over_axes(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    rank = len(shape)
    choices: list[list[int]] = [[], *([axis] for axis in range(-rank, rank)), list(range(rank))]
    choices += [[0, -1], [1, 2]] if rank > 2 else []
    for axes in choices:
        yield [Slot(shape), fixed(axes)], {}


def _along(make: Callable[[Shape, int], Inputs], beyond: int = 0) -> Maker:
    """Inputs for each axis of a shape, or of a shape with more axes."""

    def maker(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
        rank = len(shape) + beyond
        for axis in range(-rank, rank):
            yield make(shape, axis)

    return maker


def _of_rank(rank: int, *makes: Callable[[Shape], Sequence[Slot]]) -> Maker:
    """Inputs for shapes of this rank only."""

    def maker(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
        if len(shape) == rank:
            for make in makes:
                yield make(shape), {}

    return maker


def _longer(shape: Shape, axis: int) -> Shape:
    """The shape, longer by 1 along an axis."""
    other = list(shape)
    other[axis] += 1
    return tuple(other)


def _matrices(shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
    if len(shape) != 2:
        return
    rows, inner = shape
    first, second = (rows, inner), (inner, rows + 1)
    yield (
        [
            Slot(first[::-1] if attributes["transpose_a"] else first),
            Slot(second[::-1] if attributes["transpose_b"] else second),
        ],
        {},
    )


def _batched(shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
    if len(shape) < 2:
        return
    *batch, rows, inner = shape
    first, second = (rows, inner), (inner, rows + 1)
    first = first[::-1] if attributes["adj_x"] else first
    second = second[::-1] if attributes["adj_y"] else second
    for batch_x, batch_y in _broadcasting(tuple(batch), 2):
        yield [Slot((*batch_x, *first)), Slot((*batch_y, *second))], {}


_EQUATIONS = {
    "ab,bc->ac": ["ab", "bc"],
    "ab,cb->ca": ["ab", "cb"],
    "abc,cd->abd": ["abc", "cd"],
    "abc,adc->abd": ["abc", "adc"],
    "ab->": ["ab"],
    "ab->ba": ["ab"],
    "aa->a": ["aa"],
    "aab->b": ["aab"],
    "a->aa": ["a"],
    "...ab,...bc->...ac": ["eab", "ebc"],
    "...ab,bc->...ac": ["efab", "bc"],
    "...a->a...": ["ba"],
    "a,a->": ["a", "a"],
    "a,b->ab": ["a", "b"],
    "abc,abd->cd": ["abc", "abd"],
    ",a->a": ["", "a"],
}


def _einsum(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    sizes = dict(zip("abcdef", (*shape, 2, 3, 1, 2, 2, 2), strict=False))
    for equation, labels in _EQUATIONS.items():
        yield (
            [Slot(tuple(sizes[label] for label in operand)) for operand in labels],
            {"equation": equation},
        )


def _image(shape: Shape, layout: str) -> Shape:
    """The shape of images, with the channels in the layout's place."""
    batch, *pixels, channels = shape
    first = layout in {"NCHW", "NCDHW", "NCHW_VECT_C"}
    return (batch, channels, *pixels) if first else (batch, *pixels, channels)


def _per_axis(layout: str, *sizes: int) -> list[int]:
    """An attribute with a number for each axis: `sizes` for the pixel axes, 1 for the others."""
    return list(_image((1, *sizes, 1), layout))


def _windows(attributes: Mapping[str, Any], pixels: int) -> Iterator[dict[str, Any]]:
    """Strides and paddings of convolutions and pooling."""
    layout = attributes.get("data_format", "NHWC")
    explicit: dict[str, Any] = {}
    if attributes["padding"] == "EXPLICIT":
        axes = list(_image((0, 1, 1, 0), layout))
        explicit = {"explicit_paddings": [size for axis in axes for size in (axis, axis // 2)]}
    for stride in (1, 2):
        yield {"strides": _per_axis(layout, *[stride] * pixels), **explicit}


def _pixels(shape: Shape, count: int, attributes: Mapping[str, Any]) -> Shape | None:
    """The shape of images, from the sizes of batch, height, width and channels."""
    if len(shape) != 4:
        return None
    batch, height, width, channels = shape
    middle = (height + 2, width + 2, height + 1)[:count]
    return _image((batch, *middle, channels), attributes.get("data_format", "NHWC"))


def _pooling(pixels: int, result: str = "") -> Maker:
    def make(shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
        image = _pixels(shape, pixels, attributes)
        if image is None:
            return
        layout = attributes.get("data_format", "NHWC")
        for window in _windows(attributes, pixels):
            more = {"ksize": _per_axis(layout, *[2] * pixels), **window}
            if not result:
                yield [Slot(image)], more
                continue
            try:
                pooled = tuple(
                    _like("MaxPool3D" if pixels == 3 else "MaxPool", image, attributes, more)
                )
            except (tf.errors.OpError, ValueError):
                continue
            if result == "sizes":
                yield [fixed(image), Slot(pooled)], more
            else:
                yield [Slot(image), Slot(pooled), Slot(pooled)], more

    return make


def _like(op: str, image: Shape, attributes: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """The result shape of an operation on images; raises if the operation refuses them."""
    all_attributes = {**attributes, **more}
    if all_attributes["padding"] == "EXPLICIT" and "explicit_paddings" not in all_attributes:
        raise ValueError("no paddings")
    return getattr(tf.raw_ops, op)(input=tf.zeros(image), **all_attributes).shape


def _convolution(op: str, pixels: int, which: str) -> Maker:
    def make(shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
        image = _pixels(shape, pixels, attributes)
        if image is None:
            return
        layout = attributes.get("data_format", "NHWC")
        channels = shape[3]
        kernel = (*[2] * pixels, channels, 2)
        for window, dilation in itertools.product(_windows(attributes, pixels), (1, 2)):
            more = {"dilations": _per_axis(layout, *[dilation] * pixels), **window}
            if which == "forward":
                yield [Slot(image), Slot(kernel)], more
                continue
            all_attributes = {**attributes, **more}
            try:
                result = getattr(tf.raw_ops, op)(
                    input=tf.zeros(image), filter=tf.zeros(kernel), **all_attributes
                ).shape
            except (tf.errors.OpError, ValueError):
                continue
            if which == "filter":
                sizes = fixed(kernel)
                yield [Slot(image), sizes, Slot(tuple(result))], more
            else:
                # Without oneDNN, TensorFlow (2.21) computes other NaN for an infinite filter of
                # three dimensions when a batch has several images, so a global batch on one
                # device differs from its parts too.
                sizes, finite = fixed(image), op == "Conv3D"
                yield [sizes, Slot(kernel, finite=finite), Slot(tuple(result))], more

    return make


def _bias(shape: Shape, attributes: Mapping[str, Any]) -> Iterator[Inputs]:
    if len(shape) > 1:
        axis = 1 if attributes["data_format"] == "NCHW" else -1
        yield [Slot(shape), Slot((shape[axis],))], {}


def _reshape(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for after in ([-1], [1, *shape], [*shape, 1], list(shape[::-1]), [*shape[:1], -1]):
        yield [Slot(shape), fixed(after)], {}


def _squeeze(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    yield [Slot(shape)], {}
    yield [Slot((1, *shape))], {"axis": [0]}
    yield [Slot((*shape, 1))], {"axis": [-1]}


def _transpose(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    orders = list(itertools.permutations(range(len(shape))))
    for order in orders[:: max(1, len(orders) // 5)]:
        yield [Slot(shape), fixed(order)], {}


def _slices(shape: Shape) -> Iterator[tuple[list[list[int]], dict[str, int]]]:
    """Lists of begins, ends and strides, with masks."""
    rank = len(shape)
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    for masks in ([0] * 5, [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 0, 2], [0, 0, 0, 1, 0]):
        for stride in (1, 2, -1):
            begin, end = ([0] * rank, list(shape)) if stride > 0 else ([-1] * rank, [-9] * rank)
            bounds = [begin, end, [stride] * rank]
            yield bounds, dict(zip(names, masks, strict=True))
    yield [[1], [-1], [1]], {}
    yield [[0, -1], [1, 9], [1, 1]], {"shrink_axis_mask": 2}


def _strided_slice(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for bounds, masks in _slices(shape):
        yield [Slot(shape), *map(fixed, bounds)], masks


def _strided_slice_gradient(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for bounds, masks in _slices(shape):
        begin, end, strides = bounds
        try:
            sizes = tf.raw_ops.StridedSlice(
                input=tf.zeros(shape), begin=begin, end=end, strides=strides, **masks
            ).shape
        except (tf.errors.OpError, ValueError):
            continue
        whole = fixed(shape)
        yield [whole, *map(fixed, bounds), Slot(tuple(sizes))], masks


def _padding(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for margins in ([[1, 0]] * len(shape), [[k % 2, 1] for k in range(len(shape))]):
        yield [Slot(shape), fixed(np.reshape(margins, [-1, 2]))], {}


def _tile(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for times in ([2] * len(shape), range(1, len(shape) + 1)):
        yield [Slot(shape), fixed(times)], {}


def _broadcast(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for before in dict.fromkeys([shape, shape[1:], (1, *shape[1:]), (*shape[:-1], 1)]):
        yield [Slot(before), fixed(shape)], {}


def _gather(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    rank = len(shape)
    for axis in range(-rank, rank):
        for indices in ((), (3,), (2, 2)):
            yield [Slot(shape), Slot(indices, below=shape[axis]), fixed(axis)], {"batch_dims": 0}
    for inner in (1, -1):
        for axis in range(1, rank):
            indices = (shape[0], *[2] * (1 if inner > 0 else 0))
            places = [Slot(shape), Slot(indices, below=shape[axis]), fixed(axis)]
            yield places, {"batch_dims": inner}


def _variable_gather(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for indices, inner in (((), 0), ((3,), 0), ((2, 2), 0), ((*shape[:1], 2), 1)):
        if len(shape) <= inner:
            continue
        table = Slot(shape, variable=True)
        yield [table, Slot(indices, below=shape[inner])], {"batch_dims": inner}


def _one_hot(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for axis in range(-1, len(shape) + 1):
        yield [Slot(shape, below=4), fixed(3), Slot(()), Slot(())], {"axis": axis}


def _segments(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
    for rank in range(1, len(shape) + 1):
        yield [Slot(shape), Slot(shape[:rank], below=3), fixed(3)], {}


def _lists(*others: str, elements: bool = True) -> Maker:
    """A tensor list, or a tensor that becomes a list; and an element, its index or its shape."""

    def make(shape: Shape, _: Mapping[str, Any]) -> Iterator[Inputs]:
        if not shape:
            return
        slots = {
            "item": Slot(shape[1:]),
            "shape": fixed(shape[1:]),
            "length": fixed(shape[0]),
            "index": fixed(shape[0] - 1),
        }
        yield [Slot(shape, elements=elements), *map(slots.get, others)], {}

    return make


_RESIZING = _of_rank(
    4, *(lambda shape, sizes=sizes: [Slot(shape), fixed(sizes)] for sizes in ([5, 4], [1, 2]))
)
_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(["EmptyTensorList", "TensorListReserve"], _lists("length")),
    **dict.fromkeys(["TensorListElementShape", "TensorListLength"], _lists()),
    **dict.fromkeys(["TensorListPopBack", "TensorListStack"], _lists("shape")),
    "TensorListFromTensor": _lists("shape", elements=False),
    "TensorListGetItem": _lists("index", "shape"),
    "TensorListPushBack": _lists("item"),
    "TensorListSetItem": _lists("index", "item"),
    **dict.fromkeys(
        ["All", "Any", "Max", "Mean", "Min", "Prod", "ReverseV2", "Sum"],
        _over_axes,
    ),
    **dict.fromkeys(
        ["ArgMax", "Cumsum"], _along(lambda shape, axis: ([Slot(shape), fixed(axis)], {}))
    ),
    "BatchMatMulV2": _batched,
    **dict.fromkeys(["ResizeBilinear", "ResizeNearestNeighbor"], _RESIZING),
    "AvgPool": _pooling(2),
    "AvgPool3D": _pooling(3),
    "AvgPool3DGrad": _pooling(3, "sizes"),
    "AvgPoolGrad": _pooling(2, "sizes"),
    "BiasAdd": _bias,
    "BroadcastTo": _broadcast,
    "ConcatV2": _along(
        lambda shape, axis: ([Slot(shape), Slot(_longer(shape, axis)), fixed(axis)], {})
    ),
    "Conv2D": _convolution("Conv2D", 2, "forward"),
    "Conv2DBackpropFilter": _convolution("Conv2D", 2, "filter"),
    "Conv2DBackpropInput": _convolution("Conv2D", 2, "input"),
    "Conv3D": _convolution("Conv3D", 3, "forward"),
    "Conv3DBackpropFilterV2": _convolution("Conv3D", 3, "filter"),
    "Conv3DBackpropInputV2": _convolution("Conv3D", 3, "input"),
    "DepthwiseConv2dNative": _convolution("DepthwiseConv2dNative", 2, "forward"),
    "DepthwiseConv2dNativeBackpropFilter": _convolution("DepthwiseConv2dNative", 2, "filter"),
    "DepthwiseConv2dNativeBackpropInput": _convolution("DepthwiseConv2dNative", 2, "input"),
    "Einsum": _einsum,
    "ExpandDims": _along(lambda shape, axis: ([Slot(shape), fixed(axis)], {}), beyond=1),
    "GatherV2": _gather,
    "InTopKV2": _of_rank(2, lambda shape: [Slot(shape), Slot(shape[:1], below=shape[1]), fixed(1)]),
    "MatMul": _matrices,
    "MaxPool": _pooling(2),
    "MaxPool3D": _pooling(3),
    "MaxPool3DGrad": _pooling(3, "values"),
    "MaxPoolGrad": _pooling(2, "values"),
    "OneHot": _one_hot,
    "Pack": _along(lambda shape, axis: ([Slot(shape)] * 2, {"axis": axis}), beyond=1),
    "Pad": _padding,
    "Reshape": _reshape,
    "ResizeBilinearGrad": _of_rank(
        4, lambda shape: [Slot(shape, np.float32), Slot((shape[0], 4, 3, shape[3]))]
    ),
    "ResizeNearestNeighborGrad": _RESIZING,
    "ResourceGather": _variable_gather,
    "SparseSoftmaxCrossEntropyWithLogits": _of_rank(
        2, lambda shape: [Slot(shape), Slot(shape[:1], below=shape[1])]
    ),
    "Split": _along(lambda shape, axis: ([fixed(axis), Slot(shape)], {"num_split": shape[axis]})),
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_gradient,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unpack": _along(lambda shape, axis: ([Slot(shape)], {"axis": axis, "num": shape[axis]})),
    "UnsortedSegmentSum": _segments,
}
