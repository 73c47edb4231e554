"""Verdicts of the TPU's own compiler on functions that the virtual TPU traces."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from support.checked_functions import CASES, LIBTPU, asked
from support.strategies import strategy_of, strategy_of_parts
from support.tiers import THOROUGH

from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.program import CompileError, TpuPrograms
from tpunb.errors import AcceleratorTypeError
from tpunb.tensorflow.checks.keras_models import model_step
from tpunb.tpu.compiled_program import Share

pytestmark = pytest.mark.usefixtures("libtpu")

MEBI = 2**20
SQUARE = tf.TensorSpec([256, 256])


@pytest.fixture(scope="module")
def eight() -> Any:
    return strategy_of("v5e-8", strict=True)


@pytest.mark.parametrize("name", asked(LIBTPU))
def test_the_verdict_comes_from_the_compiler(name: str) -> None:
    fn, refused = CASES[name].function, CASES[name].refused
    program = compile(fn, *CASES[name].args, tpu="v5e-8")
    assert not program.unknown
    assert [error.code for error in program.errors] == ([refused] if refused else [])
    assert program.ok is not bool(refused)
    assert (program.memory is None) is bool(refused)
    for error in program.errors:
        first = fn.__code__.co_firstlineno
        assert error.file == fn.__code__.co_filename
        assert first <= (error.line or 0) < first + 12
        assert error.fix.endswith(".")


@pytest.mark.parametrize(
    ("tpu", "gibibytes"), [("v3-8", 15.48), ("v5e-8", 15.75), ("v6e-8", 31.24)]
)
@pytest.mark.parametrize(("share", "fits"), [(0.97, True), (1.02, False)])
def test_only_programs_below_the_memory_limit_fit(
    tpu: str, gibibytes: float, share: float, fits: bool
) -> None:
    # An argument and a result of equal size, which cannot share their memory.
    rows = int(gibibytes * 2**30 * share / 2 / 4 / 1024) // 8 * 8

    def fn(x: Any) -> Any:
        return x * 2.0

    program = compile(fn, tf.TensorSpec([rows, 1024]), tpu=tpu)
    assert program.ok is fits
    assert program.memory is not None
    assert program.memory.fits is fits
    assert program.memory.available == int(gibibytes * 2**30)
    if not fits:
        assert [error.code for error in program.errors] == ["memory"]
        assert f"f32[{rows},1024]" in program.errors[0].reason
        with pytest.raises(CompileError, match="does not compile"):
            program.raise_if_refused()


def test_memory_is_divided_by_variables_tensors_and_lines(eight: Any) -> None:
    with eight.scope():
        w = tf.Variable(tf.zeros([512, 2048]), name="weights")

    def step(x: Any) -> Any:
        wide = tf.nn.relu(x @ w)
        return tf.reduce_sum(tf.sort(wide, axis=1) * wide)

    program = compile(step, tf.TensorSpec([4096, 512]), strategy=eight)
    memory = program.memory
    assert memory is not None
    assert memory.variables == 4 * MEBI
    assert memory.arguments == pytest.approx(12 * MEBI, rel=0.01)
    assert memory.peak == pytest.approx(
        memory.arguments + memory.temporaries + memory.outputs, rel=0.01
    )
    alive = sum(buffer.padded_bytes for buffer in memory.largest)
    assert alive == pytest.approx(memory.peak, rel=0.05), "the listed tensors make up the peak"
    assert [buffer.node for buffer in memory.largest if buffer.kind == "variable"] == ["weights"]
    first = step.__code__.co_firstlineno
    assert {share.line.line - first for share in memory.by_line if share.line} <= {1, 2}
    assert program.examples == 4096 * 8
    assert program.replicas == 8


def test_padding_names_the_tensor_and_the_line() -> None:
    def fn(x: Any) -> Any:
        encoded = tf.one_hot(tf.cast(x, tf.int32), 9)
        return tf.cumsum(encoded, axis=0)

    memory = compile(fn, tf.TensorSpec([128, 128]), tpu="v5e-8").memory
    assert memory is not None
    worst = memory.padding[0]
    assert worst.factor > 1.5
    assert worst.padded_bytes - worst.unpadded_bytes == worst.wasted
    assert {one.line.line for one in memory.padding if one.line} <= {
        fn.__code__.co_firstlineno + 1,
        fn.__code__.co_firstlineno + 2,
    }


@pytest.fixture(scope="module")
def lines() -> Any:
    def fn(x: Any, y: Any, z: Any) -> Any:
        one = x @ y
        three = [x @ factor for factor in (z[0], z[1], z[2])]
        loop = tf.reverse(x, [0])
        for _ in range(2):
            loop = tf.tanh(loop @ y)
        return one, three, loop

    program = compile(
        fn,
        tf.TensorSpec([2048, 1024]),
        tf.TensorSpec([1024, 1024]),
        [tf.TensorSpec([1024, 1024])] * 3,
        tpu="v3-8",
        speed=True,
    )
    return program, fn.__code__.co_firstlineno


@THOROUGH
def test_lines_have_the_shares_of_their_products(lines: Any) -> None:
    program, first = lines
    shares = {share.line.line - first: share.fraction for share in program.time.by_line}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.05)
    assert shares[1] == pytest.approx(1 / 6, abs=0.1)
    assert shares[2] == pytest.approx(3 / 6, abs=0.1)
    assert shares[5 if 5 in shares else 4] == pytest.approx(2 / 6, abs=0.1)


def test_gradients_and_loops_belong_to_their_lines() -> None:
    def fn(x: Any, w: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            first = tf.nn.conv2d(x, w, 1, "SAME")
            loss = tf.reduce_sum(tf.nn.conv2d(first, w, 1, "SAME") ** 2)
        for _ in tf.range(4):
            y = tf.tanh(y @ y)
        return tape.gradient(loss, w), y

    specs = [tf.TensorSpec([32, 64, 64, 128]), tf.TensorSpec([3, 3, 128, 128])]
    program = compile(fn, *specs, tf.TensorSpec([2048, 2048]), tpu="v3-8", speed=True)
    assert program.time is not None
    first = fn.__code__.co_firstlineno
    shares = {one.line.line - first: one.fraction for one in program.time.by_line if one.line}
    # The first line has two of the five convolutions: it needs no gradient for its input.
    convolution, product = 32 * 64 * 64 * 9 * 128 * 128, 2048**3
    parts = {3: 2 * convolution, 4: 3 * convolution, 6: 4 * product}
    for line, part in parts.items():
        assert shares[line] == pytest.approx(part / sum(parts.values()), abs=0.1)


def test_the_time_is_a_range_and_its_parts_add_up(lines: Any) -> None:
    time = lines[0].time
    assert 0 < time.low <= time.estimate <= time.high
    # 6 products of 2048 × 1024 × 1024 on a core with 61.5 TFLOP/s.
    ideal = 6 * 2 * 2048 * 1024 * 1024 / 61.5e12
    assert ideal * 0.7 < time.estimate < ideal * 2.5
    assert time.matmul + time.memory_bound + time.collectives_fraction == pytest.approx(1.0)
    assert time.matmul > 0.6
    assert time.not_counted
    assert all(isinstance(share, Share) and share.seconds is not None for share in time.by_line)
    assert "HloModule" in lines[0].as_text()


@THOROUGH
def test_several_types_give_a_table(eight: Any) -> None:
    def fn(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", x @ x)

    names = ["v2-8", "v4-8", "v5e-1", "v6e-8", "tpu7x-8", "v3-32"]
    programs = compile(fn, SQUARE, tpu=names, strategy=eight)
    assert isinstance(programs, TpuPrograms)
    assert [program.tpu for program in programs] == names
    assert programs.ok
    assert [row.cores for row in programs.rows()] == [8, 4, 1, 8, 16, 32]
    assert [row.fits for row in programs.rows()] == [True] * 6
    assert programs["v3-32"].examples == 256 * 32
    frame = programs.to_pandas()
    assert list(frame.index) == names
    assert (frame["peak"] < frame["available"]).all()


def test_collectives_come_from_the_tpus_compiler(eight: Any) -> None:
    def fn(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("mean", x)
        gathered = context.all_gather(x[:1], axis=0)
        return total, gathered

    text = compile(fn, SQUARE, strategy=eight).as_text()
    assert "all-reduce" in text
    assert "{0,1,2,3,4,5,6,7}" in text


@pytest.fixture(scope="module")
def model(eight: Any) -> Iterator[Any]:
    import keras

    with eight.scope():
        model = keras.Sequential(
            [
                keras.Input([512]),
                keras.layers.Dense(4096, activation="relu", name="wide"),
                keras.layers.Dense(16, name="narrow"),
                keras.layers.Dense(10, name="head"),
            ]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_model_is_compiled_with_its_global_batch(model: Any, method: str, eight: Any) -> None:
    batch = [tf.TensorSpec([8192, 512]), tf.TensorSpec([8192], tf.int64)]
    fn = model if method == "fit" else getattr(model, method)
    program = compile(fn, *batch[: 1 if method == "predict" else 2], strategy=eight)
    assert program.ok, str(program)
    assert program.examples == 8192
    assert program.memory is not None
    layers = {share.name: share.memory for share in program.memory.by_layer}
    assert max(layers, key=layers.__getitem__) == "wide"
    inputs = [buffer for buffer in program.memory.largest if buffer.shape == (1024, 512)]
    assert inputs or method == "fit", "each replica has an eighth of the batch"


def test_logical_devices_share_a_replica() -> None:
    strategy = strategy_of_parts(4, strict=True, spmd=True)

    def fn(x: Any) -> Any:
        x = strategy.experimental_split_to_logical_devices(x, [2, 1])
        return tf.reduce_sum(tf.sort(tf.nn.relu(x), axis=1))

    program = compile(fn, tf.TensorSpec([4096, 1024]), strategy=strategy)
    assert program.ok, str(program)
    assert (program.replicas, program.logical_devices) == (4, 2)
    assert program.memory is not None
    assert program.memory.arguments == pytest.approx(8 * MEBI, rel=0.01), (
        "each core holds half of the argument"
    )


def test_a_model_with_a_loss_needs_targets() -> None:
    import keras
    import tf_keras

    class Autoencoder(tf_keras.Sequential):  # type: ignore[misc]
        def train_step(self, x: Any) -> Any:
            return {"loss": tf.reduce_mean((self(x) - x) ** 2)}

    x = tf.TensorSpec([8, 4])
    for kind in (keras, tf_keras):
        model = kind.Sequential([kind.layers.InputLayer([4]), kind.layers.Dense(4)])
        model.compile("sgd", "mse")
        for fn in (model, model.fit, model.evaluate):
            with pytest.raises(CompileError, match="the batch has inputs alone"):
                model_step(fn, [x], None, CompileError, "tpunb.compile")
        assert model_step(model, [x, x], None, CompileError, "tpunb.compile")
        assert model_step(model.predict, [x], None, CompileError, "tpunb.compile")
    autoencoder = Autoencoder([tf_keras.layers.InputLayer([4]), tf_keras.layers.Dense(4)])
    autoencoder.compile("sgd", "mse")
    assert model_step(autoencoder, [x], None, CompileError, "tpunb.compile")


def test_an_impossible_request_names_a_fix(eight: Any) -> None:
    with pytest.raises(CompileError, match="No TPU type to compile for"):
        compile(lambda x: x, SQUARE)
    with pytest.raises(AcceleratorTypeError):
        compile(lambda x: x, SQUARE, tpu="v5e-9")
    with pytest.raises(CompileError, match="needs a TPU type"):
        compile(lambda x: x, SQUARE, tpu="8")
    with pytest.raises(CompileError, match="no program"):
        compile(lambda x: tf.matmul(x, x), tf.TensorSpec([4, 4], tf.int64), tpu="v5e-8").as_text()


def test_a_program_is_plain_data() -> None:
    program = compile(lambda x: x @ x, SQUARE, tpu="v5e-8")
    import json

    read = json.loads(json.dumps(program.as_dict()))
    assert read["ok"] is True
    assert read["memory"]["peak"] == program.memory.peak  # type: ignore[union-attr]
    assert "text" not in read
    assert dataclasses.replace(program, text="").headline == program.headline


def test_a_caller_of_run_is_compiled_as_its_replica_function(eight: Any) -> None:
    def replica(x: Any) -> Any:
        return x @ x

    def call(x: Any) -> Any:
        return eight.run(replica, args=(x,))

    def twice(x: Any) -> Any:
        return call(x), call(x)

    once, both = compile(call, SQUARE, strategy=eight), compile(twice, SQUARE, strategy=eight)
    assert once.ok
    assert once.lines[0].text == "return x @ x"
    assert any("2 times" in note for note in both.notes)


def test_progress_is_reported() -> None:
    messages: list[str] = []
    compile(lambda x: x + 1.0, SQUARE, tpu=["v3-8", "v5e-8"], progress=messages.append)
    compiling = [message for message in messages if message.startswith("compiling")]
    assert compiling == ["compiling for v3-8", "compiling for v5e-8"]
    assert any(message.startswith("v3-8: compiles, ") for message in messages)
    assert "tracing" in messages[0]


@THOROUGH
def test_no_graph_is_kept(eight: Any, model: Any) -> None:
    """TensorFlow keeps custom gradients, as of Keras's losses, and their graph for ever."""
    batch = [tf.TensorSpec([64, 512]), tf.TensorSpec([64], tf.int64)]
    compile(model, *batch, strategy=eight)
    gc.collect()
    before = graphs()
    compile(model, *batch, strategy=eight)
    gc.collect()
    assert graphs() == before


def graphs() -> int:
    return sum(isinstance(value, tf.Graph) for value in gc.get_objects())


def test_a_model_created_without_a_strategy_needs_none() -> None:
    import keras

    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    program = compile(model, tf.TensorSpec([64, 8]), tf.TensorSpec([64, 4]), tpu="v5e-1")
    assert program.ok
    assert (program.replicas, program.examples) == (1, 64)


def test_a_model_that_creates_variables_while_traced_is_compiled_once() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.Input([8]), tf_keras.layers.Dense(4)])
    model.compile(tf_keras.optimizers.legacy.SGD(momentum=0.9), "mse")
    program = compile(model, tf.TensorSpec([16, 8]), tf.TensorSpec([16, 4]), tpu="v5e-8")
    assert not any("strategy.run" in note for note in program.notes)
