"""The collectives that replica functions pass to the TPU's own compiler."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.strategies import strategy_of
from support.tiers import THOROUGH

from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.program import TpuProgram
from tpunb.compiler.read.core_groups import groups_in
from tpunb.compiler.read.hlo import Instruction, parse
from tpunb.tensorflow.virtual.private_names import tpu_ops

pytestmark = pytest.mark.usefixtures("libtpu")

X = tf.TensorSpec([64, 256])
PAIRS = [[replica, (replica + 1) % 8] for replica in range(8)]


@pytest.fixture(scope="module")
def eight() -> Any:
    return strategy_of("v5e-8", strict=True)


def collectives(program: TpuProgram, kind: str) -> list[Instruction]:
    assert program.ok, str(program)
    instructions = [
        instruction
        for computation in parse(program.as_text()).computations.values()
        for instruction in computation.instructions
    ]
    return [
        instruction for instruction in instructions if instruction.opcode in {kind, f"{kind}-start"}
    ]


@pytest.mark.parametrize(
    ("tpu", "pairs"),
    [("v5e-8", PAIRS), ("v3-8", PAIRS), ("v2-32", PAIRS), ("v5e-8", [[0, 3], [3, 0]])],
)
def test_a_permutation(eight: Any, tpu: str, pairs: list[list[int]]) -> None:
    program = compile(lambda x: tpu_ops.collective_permute(x, pairs), X, tpu=tpu, strategy=eight)
    (permute,) = collectives(program, "collective-permute")
    text = ",".join(f"{{{source},{target}}}" for source, target in pairs)
    assert f"source_target_pairs={{{text}}}" in permute.rest
    assert {shape.sizes for shape in permute.results if shape.sizes} == {(64, 256)}


def permuted(x: Any) -> Any:
    return tpu_ops.collective_permute(x, PAIRS)


def exchanged(x: Any) -> Any:
    return tpu_ops.all_to_all(x, concat_dimension=1, split_dimension=0, split_count=8)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32])
def test_an_all_to_all(eight: Any, dtype: tf.DType) -> None:
    program = compile(exchanged, tf.TensorSpec([64, 256], dtype), strategy=eight, speed=True)
    (exchange,) = collectives(program, "all-to-all")
    assert {len(group) for group in groups_in(exchange.rest) or ()} == {8}
    assert program.memory is not None
    assert program.time is not None
    (share,) = program.time.collectives
    assert share.name.startswith("all-to-all of ")
    assert share.bytes == pytest.approx(7 / 8 * 64 * 256 * dtype.size, rel=0.01)
    assert share.line is not None
    assert share.line.line == exchanged.__code__.co_firstlineno + 1
    assert program.communication is not None
    (transfer,) = program.communication.transfers
    assert (transfer.kind, transfer.sent, transfer.line) == ("all-to-all", share.bytes, share.line)
    assert transfer.fraction == pytest.approx(share.fraction)
    assert (program.communication.mesh, program.communication.cores) == ((), 8)
    assert "all 8 cores" in str(program)


def test_an_all_to_all_in_groups(eight: Any) -> None:
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def fn(x: Any) -> Any:
        return tpu_ops.all_to_all(x, 0, 1, 4, group_assignment=groups)

    for tpu, cores in (("v5e-8", 8), ("v2-32", 32)):
        program = compile(fn, X, tpu=tpu, strategy=eight)
        (exchange,) = collectives(program, "all-to-all")
        assert {len(group) for group in groups_in(exchange.rest) or ()} == {4}
        assert program.communication is not None
        (found,) = program.communication.groups
        assert {len(group) for group in found.groups} == {4}
        assert str(cores - 1) in exchange.rest
    program = compile(fn, X, tpu="v5e-4", strategy=eight)
    assert [error.code for error in program.errors] == ["compile"]


@pytest.mark.parametrize(
    ("fn", "kind", "dtypes"),
    [
        (permuted, "collective-permute", "uint8 int64 float64 complex64"),
        (exchanged, "all-to-all", "int8 uint16 bool uint64 complex64"),
    ],
    ids=["permute", "all-to-all"],
)
def test_all_types_of_tensorflow_reach_the_compiler(
    eight: Any, fn: Any, kind: str, dtypes: str
) -> None:
    for dtype in map(tf.dtypes.as_dtype, dtypes.split()):
        program = compile(fn, tf.TensorSpec([64, 256], dtype), strategy=eight)
        assert collectives(program, kind), dtype


def test_a_sum_in_float64_uses_the_links(eight: Any) -> None:
    """libtpu gathers both halves of the numbers, and adds them on each core."""
    spec = tf.TensorSpec([64, 256], tf.float64)
    program = compile(tpu_ops.cross_replica_sum, spec, strategy=eight)
    assert collectives(program, "all-gather")


def test_a_sum_in_groups(eight: Any) -> None:
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    program = compile(lambda x: tpu_ops.cross_replica_sum(x, groups), X, strategy=eight)
    (total,) = collectives(program, "all-reduce")
    assert "replica_groups={{0,2,4,6},{1,3,5,7}}" in total.rest


@THOROUGH
def test_a_model_of_tf_keras_has_its_layers(eight: Any) -> None:
    import tf_keras

    with eight.scope():
        k = tf_keras.layers
        layers = [k.Conv2D(64, 3, name="first"), k.Flatten(), k.Dense(10, name="head")]
        model = tf_keras.Sequential([tf_keras.Input([32, 32, 3]), *layers])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(), loss)
    batch = [tf.TensorSpec([256, 32, 32, 3]), tf.TensorSpec([256], tf.int64)]
    for fn, data in ((model, batch), (model.evaluate, batch), (model.predict, batch[:1])):
        program = compile(fn, *data, strategy=eight)
        assert program.ok, str(program)
        assert program.examples == 256
        assert program.memory is not None
        assert {share.name for share in program.memory.by_layer} <= {"first", "flatten", "head"}
    assert "all-reduce" in compile(model, *batch, strategy=eight).as_text()
