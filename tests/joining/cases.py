"""Cases of every operation that is joined, from TensorFlow's own definitions of operations.

Each is an operation with types and values of its attributes, inputs of some rank and sizes, and
which of them vary between the replicas.
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

from tpunb.virtual._tensorflow import dtypes, op_def_registry

SHAPES = [
    (),
    *[(size,) * rank for rank in range(1, 5) for size in (1, 2, 3)],
    *[(3, 1, 2, 4)[:rank] for rank in range(2, 5)],
    (2, 4, 3),
]
"""Ranks 0 to 4, and sizes 1, 2, 3, even and uneven."""

_ANY = [
    tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64,
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
]  # fmt: skip

SUMMED = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.int32})
"""The types of what replicas sum."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One use of an operation.

    Attributes:
        op: The operation.
        types: The values of its attributes that are types.
        attributes: Those of the others.
        slots: Its inputs.
        kinds: Their types.
        varies: Whether each varies.
        constant: Whether those that do not are constants.
        listed: Whether the operation takes the first of them as a list, and how many.
        summed: Whether only the sums over the replicas of what it gives are used.
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
        """Whether axes, shapes and their like are constants, so that it may be joined."""
        fixed = [slot.values is not None for slot in self.slots]
        varies = any(map(operator.and_, fixed, self.varies))
        return not varies and (self.constant or not any(fixed))

    def __str__(self) -> str:
        """What says it all in a line."""
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
        """For each input its value on each replica."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        special = rng.random() < 0.2 and not any(kind.is_complex for kind in self.kinds)
        columns = []
        for slot, kind, varies in zip(self.slots, self.kinds, self.varies, strict=True):
            count = replicas if varies else 1
            drawn = [_drawn(rng, slot, kind, special) for _ in range(count)]
            columns.append(drawn if varies else drawn * replicas)
        return columns


def _drawn(rng: np.random.Generator, slot: Slot, kind: tf.DType, special: bool) -> Any:
    """Random numbers, or the values that an input has to have."""
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
    if special:
        which = rng.random(slot.shape)
        values = np.where(which < 0.1, np.nan, np.where(which > 0.9, np.inf, values))
    if kind.is_complex:
        values = values + 1j * rng.normal(size=slot.shape)
    return tf.cast(tf.constant(values), kind)


def cases_of(op: str, seed: int = 0) -> Iterator[Case]:
    """Cases of an operation without end: its types and attributes in turn, the rest at random.

    Args:
        op: The operation.
        seed: Other ones with another number.
    """
    definition = op_def_registry.get(op)
    rng = random.Random(f"{op} {seed}")
    kinds = list(itertools.product(_attributes(definition), _products(_choices(definition))))
    # Near the front are all types, with one value or other of each attribute.
    rng.shuffle(kinds)
    for attributes, types in itertools.cycle(kinds):
        for shape in rng.sample(SHAPES, len(SHAPES)):
            found = list(_of_shape(definition, types, attributes, shape))
            usual = [one for one in found if one.is_usual]
            if found:
                yield rng.choice(usual if usual and rng.random() < 0.9 else found)
                break


def _choices(definition: Any) -> dict[str, list[tf.DType]]:
    """The attributes that are types, with those that are allowed."""
    named = [one for one in definition.attr if one.type == "type"]
    return {
        one.name: _types(one.allowed_values.list.type or [k.as_datatype_enum for k in _ANY])
        for one in named
    }


def _attributes(definition: Any) -> Iterator[dict[str, Any]]:
    """Values of the boolean and enumerated attributes."""
    plain = {
        one.name: [False, True]
        if one.type == "bool"
        else [text.decode() for text in one.allowed_values.list.s]
        for one in definition.attr
        if one.type == "bool" or (one.type == "string" and one.allowed_values.list.s)
    }
    plain.pop("use_cudnn_on_gpu", None)  # which a CPU has not
    hints = [name for name in plain if name.startswith("grad_")]
    for values in itertools.product(*plain.values()):
        attributes = dict(zip(plain, values, strict=True))
        if len({attributes[name] for name in hints}) <= 1:  # they say what a product is for
            yield attributes


def _types(numbers: Sequence[int]) -> list[tf.DType]:
    kinds = dict.fromkeys(map(dtypes.as_dtype, numbers))
    return [kind for kind in kinds if kind in _ANY]


def _products(choices: Mapping[str, Sequence[tf.DType]]) -> Iterator[dict[str, tf.DType]]:
    """Every type of the first attribute; of the others all with one, and one with all."""
    if not choices:
        yield {}
        return
    first, *others = choices.values()
    usual = [tf.int32 if tf.int32 in one else one[0] for one in others]
    for kind in first:
        yield dict(zip(choices, [kind, *usual], strict=True))
    kind = tf.float32 if tf.float32 in first else first[0]
    for place, one in enumerate(others):
        for other in one:
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
            dtypes.as_dtype(slot.dtype or _type_of(slot, types, one.type_attr) or one.type)
            for slot, one in zip(slots, sources, strict=True)
        ]
        outputs = {"out_type", "output_type", "DstT", "type", "Tout", "dtype", "index_type"}
        outputs |= {"element_dtype", "shape_type"}
        given = {key: kind for key, kind in types.items() if key in outputs}
        for number, varies in enumerate(_subsets(slots)):
            known = {**attributes, **more}
            yield Case(
                definition.name, given, known, slots, kinds, varies, number % 3 < 2, listed, False
            )
            if SUMMED.intersection(kinds):
                yield Case(definition.name, given, known, slots, kinds, varies, True, listed, True)


def _type_of(slot: Slot, types: Mapping[str, tf.DType], attribute: str) -> tf.DType | None:
    """The type of an input, if it is in an attribute."""
    if slot.elements:
        return types.get("element_dtype", tf.float32)
    return types.get("dtype" if slot.variable else attribute)


def _subsets(slots: Sequence[Slot]) -> Iterator[tuple[bool, ...]]:
    """Which inputs vary: every subset of few, of many each alone, all and all but one."""
    places = range(len(slots))
    subsets = [
        set(one)
        for size in range(1, len(slots) + 1)
        for one in itertools.combinations(places, size)
    ]
    for one in subsets:
        few = len(slots) <= 3 or len(one) in {1, len(slots) - 1, len(slots)}
        fixed = any(slots[place].variable or 0 in slots[place].shape for place in one)
        if few and not fixed:
            yield tuple(place in one for place in places)
