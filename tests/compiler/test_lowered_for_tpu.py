"""Operations that TensorFlow lowers by device type reach the compiler in the TPU's form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tpunb.compiler.compile import compile  # noqa: A004

pytestmark = pytest.mark.usefixtures("libtpu")

X = tf.TensorSpec([64, 128])
SEED = tf.TensorSpec([2], tf.int32)
random, raw = tf.random, tf.raw_ops
AUTO_SELECT = 3


def raw_bits(op: Any, dtype: tf.DType = tf.float32, **options: Any) -> Callable[..., Any]:
    """Return a function of a raw operation with the caller's key and counter."""

    def fn(x: Any, seed: Any) -> Any:
        key = tf.cast(seed[:1], tf.uint64)
        counter = tf.cast(seed, tf.uint64)
        return op(shape=x.shape, key=key, counter=counter, alg=AUTO_SELECT, dtype=dtype, **options)

    return fn


def asked_of_tensorflow(x: Any, seed: Any) -> Any:
    key, counter, alg = raw.StatelessRandomGetKeyCounterAlg(seed=seed)
    return raw.StatelessRandomUniformV2(shape=x.shape, key=key, counter=counter, alg=alg)


def in_a_loop(x: Any, seed: Any) -> Any:
    for _ in tf.range(3):
        x += random.stateless_uniform(x.shape, seed)
    return x


def keras_dropout(x: Any, seed: Any) -> Any:
    return keras.random.dropout(x, 0.5, seed=7)


def rounded(x: Any, seed: Any) -> Any:
    """Run an operation of TensorFlow that has no Python function."""
    alg = tf.constant(AUTO_SELECT)
    inputs = [x, tf.cast(seed[:1], tf.uint64), tf.cast(seed, tf.uint64), alg]
    graph = tf.compat.v1.get_default_graph()
    types = {
        key: tf.compat.v1.AttrValue(type=kind.as_datatype_enum)
        for key, kind in (("Tin", tf.float32), ("Tout", tf.int8))
    }
    return graph.create_op("StochasticCastToInt", inputs, [tf.int8], attrs=types).outputs[0]


BITS: dict[str, Callable[..., Any]] = {
    "uniform": lambda x, s: random.stateless_uniform(x.shape, s),
    "uniform, half": lambda x, s: random.stateless_uniform(x.shape, s, dtype=tf.bfloat16),
    "integers": lambda x, s: random.stateless_uniform(x.shape, s, 0, 9, tf.int32),
    "all integers": lambda x, s: random.stateless_uniform(x.shape, s, None, None, tf.uint32),
    "normal": lambda x, s: random.stateless_normal(x.shape, s),
    "truncated": lambda x, s: random.stateless_truncated_normal(x.shape, s),
    "dropout": lambda x, s: tf.nn.experimental.stateless_dropout(x, 0.1, seed=s),
    "keras": keras_dropout,
    "loop": in_a_loop,
    "asked": asked_of_tensorflow,
    "raw": raw_bits(raw.StatelessRandomUniformV2),
    "raw normal": raw_bits(raw.StatelessRandomNormalV2),
    "v1 uniform": lambda x, s: raw.StatelessRandomUniform(shape=x.shape, seed=s),
    "v1 normal": lambda x, s: raw.StatelessRandomNormal(shape=x.shape, seed=s),
    "v1 truncated": lambda x, s: raw.StatelessTruncatedNormal(shape=x.shape, seed=s),
    "v1 integers": lambda x, s: raw.StatelessRandomUniformInt(
        shape=x.shape, seed=s, minval=0, maxval=9
    ),
    "categorical": lambda x, s: random.stateless_categorical(x, 1, s),
    "rounding": rounded,
}


def chip_generator(x: Any, seed: Any) -> Any:
    state = tf.cast(seed, tf.uint64)
    return gen_xla_ops.xla_rng_bit_generator(AUTO_SELECT, state, x.shape, tf.uint32)[1]


def generators(fn: Callable[..., Any]) -> list[tuple[str, int, str]]:
    """Return the generators of random bits: algorithm, count, and shape of the state."""
    program = compile(fn, X, SEED, tpu="v3-8")
    assert program.ok, str(program)
    text = program.as_text()
    states = dict(re.findall(r"%([\w.-]+) = (\w+\[[\d,]*\])", text))
    instructions = re.findall(
        r"= u32\[([\d,]*)\]\S* rng-bit-generator\(%([\w.-]+)\), algorithm=(\w+)", text
    )
    return [
        (name, math.prod(map(int, sizes.split(","))), states[of])
        for sizes, of, name in instructions
    ]


@pytest.mark.parametrize("name", BITS)
def test_random_bits_come_from_the_chips_generator(name: str) -> None:
    expected = generators(chip_generator)
    assert expected == [("rng_default", 64 * 128, "u64[2]")]
    assert generators(BITS[name]) == expected


NAMED: dict[str, Callable[..., Any]] = {
    "philox": lambda x, s: random.stateless_uniform(x.shape, s, alg="philox"),
    "threefry": lambda x, s: random.stateless_uniform(x.shape, s, alg="threefry"),
    "philox in a branch": lambda x, s: tf.cond(
        s[0] > 0, lambda: random.stateless_uniform(x.shape, s, alg="philox"), lambda: x
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_generator_stays(name: str) -> None:
    assert generators(NAMED[name]) == []  # the compiler expands both to arithmetic


def test_a_generator_object_stays() -> None:
    generator = tf.random.Generator.from_seed(1)
    assert generators(lambda x, s: generator.uniform(x.shape)) == []


def test_stateless_dropout_adds_no_arithmetic() -> None:
    """Stateless bits are written and read once more than those with a state."""
    spec = tf.TensorSpec([16, 512, 512])
    seconds = []
    for dropout in (
        lambda x: tf.nn.dropout(x, 0.1),
        lambda x: tf.nn.experimental.stateless_dropout(x, 0.1, seed=[1, 2]),
    ):
        program = compile(dropout, spec, tpu="v3-8", speed=True)
        assert program.time is not None
        seconds.append(program.time.high)
    assert seconds[0] < seconds[1] < 2.2 * seconds[0]


def resized(size: int, method: str) -> Callable[[Any], Any]:
    return lambda x: tf.image.resize(x, [size, size], method)


def gradient(size: int, method: str) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = resized(size, method)(x)
        return tape.gradient(y, x, y)

    return fn


RESIZINGS = {
    "bilinear": (resized(32, "bilinear"), ["ResizeBilinear"]),
    "nearest": (resized(32, "nearest"), ["ResizeNearest"]),
    "smaller": (resized(8, "bilinear"), ["ResizeBilinear"]),
    "not at all": (resized(16, "bilinear"), []),
    "gradient": (gradient(32, "bilinear"), ["ResizeBilinear", "ResizeBilinearGrad"]),
    "nearest gradient": (gradient(32, "nearest"), ["ResizeNearest", "ResizeNearestGrad"]),
    "in two steps": (
        gradient(64, "bilinear"),
        ["ResizeBilinear", "ResizeBilinearGrad", "ResizeBilinearGrad"],
    ),
}


@pytest.mark.parametrize("name", RESIZINGS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_images_are_resized_by_the_tpus_kernels(name: str, dtype: tf.DType) -> None:
    fn, kernels = RESIZINGS[name]
    program = compile(fn, tf.TensorSpec([4, 16, 16, 8], dtype), tpu="v5e-8")
    assert program.ok, str(program)
    instructions = re.findall(r'custom_call_target="(Resize\w+)"', program.as_text())
    assert sorted(instructions) == kernels
    assert not program.notes[1:]


@pytest.mark.parametrize("batch", [4, None])
def test_a_resizing_in_a_branch(batch: int | None) -> None:
    fn = resized(32, "nearest")
    spec = tf.TensorSpec([batch, 16, 16, 8])
    program = compile(
        lambda x: tf.cond(x[0, 0, 0, 0] > 0, lambda: fn(x), lambda: fn(-x)), spec, tpu="v3-8"
    )
    assert not program.errors, str(program)
    assert not program.unknown
    if batch:
        assert program.as_text().count('"ResizeNearest"') == 2


@pytest.mark.parametrize(
    ("fn", "note"),
    [
        (lambda x: tf.math.approx_max_k(x, 4)[0], "An approximate top-k"),
        (lambda x: tf.reduce_sum(tf.where(x > 0)), "tf.where(condition)"),
    ],
    ids=["top-k", "where"],
)
def test_operations_lowered_as_for_a_cpu_are_noted(fn: Callable[..., Any], note: str) -> None:
    program = compile(lambda x: tf.cond(x[0, 0] > 0, lambda: fn(x), lambda: fn(-x)), X, tpu="v3-8")
    assert [text for text in program.notes if text.startswith(note)], str(program)
