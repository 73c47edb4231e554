"""Cases of every joined operation, from TensorFlow's own definitions of operations.

A case is an operation with types and values of its attributes, inputs of some rank and sizes, and
the choice of inputs that vary between the replicas.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from joining.inputs import Slot, inputs_of

from tpunb.tensorflow.virtual.private_names import dtypes, op_def_registry

SHAPES = [
    (),
    *[(size,) * rank for rank in range(1, 5) for size in (1, 2, 3)],
    *[(3, 1, 2, 4)[:rank] for rank in range(2, 5)],
    (2, 4, 3),
]
"""Ranks 0 to 4; sizes 1, 2 and 3, equal and unequal."""

_ANY = [
    tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64,
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
]  # fmt: skip

SUMMED = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.int32})
"""The types that replicas sum."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One use of an operation.

    Attributes:
        op: The operation.
        types: The values of its type attributes.
        attributes: The values of its other attributes.
        slots: Its inputs.
        kinds: The types of its inputs.
        varies: Whether each input varies between the replicas.
        constant: Whether the inputs that do not vary are constants.
        listed: How many of the first inputs the operation takes as a list; 0 if it takes no list.
        summed: Whether the replicas use only the sums of its results.
    """

    op: str
    types: Mapping[str, tf.DType]
    attributes: Mapping[str, Any]
    slots: Sequence[Slot]
    kinds: Sequence[tf.DType]
    varies: Sequence[bool]
    constant: bool
    listed: int
    summed: bool

    @property
    def is_usual(self) -> bool:
        """Whether axes, shapes and the like are constants, so that the operation may be joined."""
        fixed = [slot.values is not None for slot in self.slots]
        varies = any(map(operator.and_, fixed, self.varies))
        return not varies and (self.constant or not any(fixed))

    def __str__(self) -> str:
        """The whole case in one line."""
        inputs = [
            f"{kind.name}{list(slot.shape)}"
            + (f"={np.asarray(slot.values).tolist()}" if slot.values is not None else "")
            + (" varies" if varies else "")
            for slot, kind, varies in zip(self.slots, self.kinds, self.varies, strict=True)
        ]
        types = {key: kind.name for key, kind in self.types.items()}
        more = ["summed"] * self.summed + ["not constant"] * (not self.constant)
        return f"{self.op}({', '.join(inputs)}) {types} {dict(self.attributes)} {' '.join(more)}"

    def values(self, replicas: int) -> list[list[Any]]:
        """Each input's value on each replica."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        special = rng.random() < 0.2 and not any(kind.is_complex for kind in self.kinds)
        columns = []
        for slot, kind, varies in zip(self.slots, self.kinds, self.varies, strict=True):
            count = replicas if varies else 1
            drawn = [_drawn(rng, slot, kind, special) for _ in range(count)]
            columns.append(drawn if varies else drawn * replicas)
        return columns


def _drawn(rng: np.random.Generator, slot: Slot, kind: tf.DType, special: bool) -> Any:
    """Random numbers, or the values that the input needs."""
    if slot.values is not None:
        return tf.cast(tf.constant(slot.values), kind)
    if slot.below is not None:
        return tf.constant(rng.integers(0, max(slot.below, 1), slot.shape), kind)
    if kind == tf.bool:
        return tf.constant(rng.random(slot.shape) < 0.5)
    if kind.is_integer:
        lowest = -4 if special and not kind.is_unsigned else 1
        return tf.constant(rng.integers(lowest, 6, slot.shape), kind)
    values = rng.normal(size=slot.shape) * 1.5
    if special and not slot.finite:
        which = rng.random(slot.shape)
        values = np.where(which < 0.1, np.nan, np.where(which > 0.9, np.inf, values))
    if kind.is_complex:
        values = values + 1j * rng.normal(size=slot.shape)
    return tf.cast(tf.constant(values), kind)


def cases_of(op: str, seed: int = 0) -> Iterator[Case]:
    """Endless cases of an operation: its types and attributes in turn, the rest at random.

    Args:
        op: The operation.
        seed: Another seed gives other cases.
    """
    definition = op_def_registry.get(op)
    rng = random.Random(f"{op} {seed}")
    kinds = list(itertools.product(_attributes(definition), _products(_choices(definition))))
    # The first cases cover all types, each with some value of every attribute.
    rng.shuffle(kinds)
    for attributes, types in itertools.cycle(kinds):
        for shape in rng.sample(SHAPES, len(SHAPES)):
            cases = list(_of_shape(definition, types, attributes, shape))
            usual = [case for case in cases if case.is_usual]
            if cases:
                yield rng.choice(usual if usual and rng.random() < 0.9 else cases)
                break


def _choices(definition: Any) -> dict[str, list[tf.DType]]:
    """The type attributes, with the types that each allows."""
    type_attributes = [attribute for attribute in definition.attr if attribute.type == "type"]
    return {
        attribute.name: _types(
            attribute.allowed_values.list.type or [k.as_datatype_enum for k in _ANY]
        )
        for attribute in type_attributes
    }


def _attributes(definition: Any) -> Iterator[dict[str, Any]]:
    """Values of the boolean and enumerated attributes."""
    plain = {
        attribute.name: [False, True]
        if attribute.type == "bool"
        else [text.decode() for text in attribute.allowed_values.list.s]
        for attribute in definition.attr
        if attribute.type == "bool"
        or (attribute.type == "string" and attribute.allowed_values.list.s)
    }
    plain.pop("use_cudnn_on_gpu", None)  # not available on a CPU
    hints = [name for name in plain if name.startswith("grad_")]
    for values in itertools.product(*plain.values()):
        attributes = dict(zip(plain, values, strict=True))
        if (
            len({attributes[name] for name in hints}) <= 1
        ):  # they say what a product is for, so they agree
            yield attributes


def _types(numbers: Sequence[int]) -> list[tf.DType]:
    kinds = dict.fromkeys(map(dtypes.as_dtype, numbers))
    return [kind for kind in kinds if kind in _ANY]


def _products(choices: Mapping[str, Sequence[tf.DType]]) -> Iterator[dict[str, tf.DType]]:
    """Every type of the first attribute; all types of the others with one type of the first."""
    if not choices:
        yield {}
        return
    first, *others = choices.values()
    usual = [tf.int32 if tf.int32 in allowed else allowed[0] for allowed in others]
    for kind in first:
        yield dict(zip(choices, [kind, *usual], strict=True))
    kind = tf.float32 if tf.float32 in first else first[0]
    for place, allowed in enumerate(others):
        for other in allowed:
            if other != usual[place]:
                rest = [other if k == place else value for k, value in enumerate(usual)]
                yield dict(zip(choices, [kind, *rest], strict=True))


def _of_shape(
    definition: Any,
    types: Mapping[str, tf.DType],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
) -> Iterator[Case]:
    arguments = definition.input_arg
    is_list = bool(arguments[0].number_attr)
    count = 0 if is_list and len(arguments) == 1 else len(arguments)
    for slots, more in inputs_of(definition.name, count, shape, attributes):
        listed = len(slots) - len(arguments) + 1 if is_list else 0
        sources = [arguments[0]] * listed + list(arguments[1 if listed else 0 :])
        kinds = [
            dtypes.as_dtype(
                slot.dtype or _type_of(slot, types, argument.type_attr) or argument.type
            )
            for slot, argument in zip(slots, sources, strict=True)
        ]
        outputs = {"out_type", "output_type", "DstT", "type", "Tout", "dtype", "index_type"}
        outputs |= {"element_dtype", "shape_type"}
        output_types = {key: kind for key, kind in types.items() if key in outputs}
        for number, varies in enumerate(_subsets(slots)):
            all_attributes = {**attributes, **more}
            case = Case(
                definition.name,
                output_types,
                all_attributes,
                slots,
                kinds,
                varies,
                number % 3 < 2,
                listed,
                False,
            )
            yield case
            if SUMMED.intersection(kinds):
                yield dataclasses.replace(case, constant=True, summed=True)


def _type_of(slot: Slot, types: Mapping[str, tf.DType], attribute: str) -> tf.DType | None:
    """The type of an input, if an attribute sets it."""
    if slot.elements:
        return types.get("element_dtype", tf.float32)
    return types.get("dtype" if slot.variable else attribute)


def _subsets(slots: Sequence[Slot]) -> Iterator[tuple[bool, ...]]:
    """Choose the inputs that vary: any subset of few; of many, each alone, all, all but one."""
    places = range(len(slots))
    subsets = [
        set(subset)
        for size in range(1, len(slots) + 1)
        for subset in itertools.combinations(places, size)
    ]
    for subset in subsets:
        few = len(slots) <= 3 or len(subset) in {1, len(slots) - 1, len(slots)}
        fixed = any(slots[place].variable or 0 in slots[place].shape for place in subset)
        if few and not fixed:
            yield tuple(place in subset for place in places)
