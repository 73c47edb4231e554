"""XLA runs in another process, so a crash of XLA does not end the notebook."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import keras
from support.patience import PATIENCE
from support.rules import check
from support.strategies import each, gradient_of, local, run, strategy_of
from support.tiers import thorough

from tpunb._util import child_process
from tpunb._util.child_process import ChildLostError, ChildProcess
from tpunb.errors import TpuWarning
from tpunb.tensorflow.virtual.graph.traced_function import traced_function_of
from tpunb.tensorflow.virtual.strict import examination, lowering, xla
from tpunb.tensorflow.virtual.strict.accepted_ops import compiles_for_certain
from tpunb.tensorflow.virtual.strict.traced_anew import traced_anew
from tpunb.tensorflow.virtual.strict.xla import Answer, Request

X = tf.TensorSpec([2, 4])


def identity() -> Request:
    """A request for a function that compiles."""
    concrete = tf.function(lambda x: x + 1.0).get_concrete_function(X)
    spec = ((2, 4), tf.float32.as_datatype_enum)
    return Request(
        concrete.function_def.signature.name,
        [concrete.function_def.SerializeToString()],
        [spec],
        [],
    )


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=True)


def test_xla_compiles_or_gives_a_reason() -> None:
    answer = xla.ask(identity())
    assert answer.compiled
    assert "f32[2,4]" in answer.text
    missing = xla.ask(Request("missing", [], [], []))
    assert not missing.compiled
    assert "missing" in missing.text
    assert xla.ask(identity()).compiled


def test_variables_need_neither_values_nor_memory() -> None:
    @tf.function
    def read(handle: Any) -> Any:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)[0]

    handle = tf.TensorSpec([], tf.resource)
    concrete = read.get_concrete_function(handle)
    variable = ((1 << 28, 1), tf.float32.as_datatype_enum)
    functions = [concrete.function_def.SerializeToString()]
    assert xla.ask(
        Request(concrete.function_def.signature.name, functions, [], [variable])
    ).compiled


@pytest.fixture(scope="module")
def compiler() -> Iterator[ChildProcess]:
    """A compiler for these tests, which end its process in all ways."""
    process = ChildProcess(xla._start, PATIENCE)
    yield process
    process.close()


ENDS = {
    "import os; os.abort()": "crashed (SIGABRT)",
    "raise SystemExit(3)": "ended with exit code 3",
    "import time; print('no answer', flush=True); time.sleep(1000)": "cannot be read",
}


def test_a_process_that_ends_is_replaced(
    compiler: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, reason in ENDS.items():
        compiler.close()  # the running process must not be reused
        with monkeypatch.context() as patched:
            patched.setattr(xla, "_CODE", code)
            with pytest.raises(ChildLostError) as lost:
                compiler.ask(identity())
        assert reason in str(lost.value)
    assert compiler.ask(identity()).compiled


def test_a_process_that_is_killed_is_replaced(compiler: ChildProcess) -> None:
    process = compiler._running()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert compiler.ask(identity()).compiled
    assert compiler._running() is not process


def test_a_slow_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_CODE", "import time; time.sleep(1000)")
    started = []
    start = xla._start
    monkeypatch.setattr(xla, "_start", lambda: started.append(start()) or started[-1])
    with pytest.raises(ChildLostError, match="took longer than 0 seconds"):
        ChildProcess(xla._start, 0.1).ask(identity())
    assert started[0].returncode == -signal.SIGKILL


def test_an_interrupt_leaves_no_answer_for_the_next_request(
    compiler: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiler._running()
    with monkeypatch.context() as patched:
        patched.setattr(child_process, "Running", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.ask(identity())
    assert first.returncode is not None
    assert compiler.ask(identity()).compiled


def _interrupted(*_: object) -> Any:
    raise KeyboardInterrupt


def branched(x: Any) -> Any:
    return tf.cond(x > 1.0, lambda: tf.tanh(x), lambda: x)


def _crash(*_: object) -> Answer:
    raise ChildLostError("crashed (SIGSEGV)")


def _internal_failure(*_: object) -> Answer:
    text = (
        "Failed getting HLO text: 'RET_CHECK failure (tensorflow/compiler/jit/get_compiler_ir.cc:"
        "214) variable.var() && variable.var()->is_initialized '"
    )
    return Answer(text, compiled=False)


@pytest.mark.parametrize(
    ("ask", "reason"), [(_crash, r"crashed \(SIGSEGV\)"), (_internal_failure, "did not look")]
)
def test_a_compiler_failure_is_not_an_error_of_the_program(
    monkeypatch: pytest.MonkeyPatch, two: Any, ask: Callable[[Request], Answer], reason: str
) -> None:
    monkeypatch.setattr(lowering, "ask", ask)
    monkeypatch.setattr("tpunb.tensorflow.virtual.strict.examination._warned", {})
    with pytest.warns(TpuWarning, match=reason):
        results = run(two, branched, each(two, [np.float32(0.0)] * 2))
    assert results == [0.0, 0.0]
    report = check(branched, X, strategy=two)
    assert report.ok
    assert "unchecked" in [problem.code for problem in report.warnings]
    lenient = strategy_of(2, strict={"unchecked": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(lenient, branched, each(lenient, [np.float32(0.0)] * 2))


def index(x: Any) -> Any:
    return tf.cast(x[0, 0] * 3.0, tf.int32)


def squares(x: Any) -> Any:
    return tf.switch_case(index(x), [lambda: x * x, lambda: tf.nn.relu(x), lambda: x * 2.0])


def scalars(x: Any) -> Any:
    return tf.switch_case(
        index(x), [lambda: tf.reduce_sum(x * x), lambda: tf.reduce_mean(x), lambda: tf.norm(x)]
    )


def nested(x: Any) -> Any:
    inner = tf.cond(x[0, 1] > 0.3, lambda: x * x, lambda: tf.sin(x))
    return tf.switch_case(index(x), [lambda: inner * x, lambda: tf.nn.relu(x) * x])


@pytest.mark.parametrize("function", [squares, scalars, nested])
@pytest.mark.parametrize("replicas", [1, 2])
def test_gradients_of_branches_of_unknown_sizes(
    function: Callable[[Any], Any], replicas: int
) -> None:
    strategy = strategy_of(replicas, strict=True)

    def replica(x: Any) -> Any:
        return gradient_of(lambda x: tf.reduce_sum(function(x)), x)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    x = tf.constant([[0.1, 0.4, 0.2, 0.3]] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TpuWarning)  # the function is checked too
        results = local(strategy, step(x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(function(x))
    gradient = tape.gradient(y, x)
    for result in results:
        np.testing.assert_allclose(result, gradient, rtol=1e-6)


# TPUs have kernels for the gradients of resizing; XLA has none for CPUs.

IMAGES = np.arange(32, dtype=np.float32).reshape([2, 4, 4, 1])


def gradient(x: Any, size: list[int], method: str) -> Any:
    return gradient_of(lambda x: tf.reduce_sum(tf.image.resize(x, size, method) ** 2), x)


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [[8, 8], [2, 2]])
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_of_resized_images_are_accepted_and_right(
    two: Any, method: str, size: list[int], nested: bool
) -> None:
    def replica(x: Any) -> Any:
        if not nested:
            return gradient(x, size, method)
        return tf.cond(
            tf.reduce_sum(x) > -1.0, lambda: gradient(x, size, method), lambda: tf.zeros_like(x)
        )

    results = run(two, replica, each(two, [IMAGES, -IMAGES]))
    expected = gradient(tf.constant(IMAGES), size, method).numpy()
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)
    np.testing.assert_allclose(results[1], 0 * expected if nested else -expected, rtol=1e-5)


# Functions that are known from the graph to compile; the compiler decides about all others.

L = keras.layers


def verdicts(function: Callable[..., Any], *shapes: list[Any]) -> tuple[bool, list[str]]:
    """Judge a function by its graph (true if it surely compiles) and by the compiler (error codes)."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = traced_function_of(tf.function(function).get_concrete_function(*specs))
    problems = examination.examine(traced).problems
    return compiles_for_certain(traced), [problem.code for problem in problems]


def trained(*layers: Any) -> Callable[..., Any]:
    """The gradients of a network."""
    model = keras.Sequential([keras.Input((6, 3)), *layers])

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return step


def loop_of(
    body: Callable[..., Any], maximum: int | None = 3, gradient: bool = False
) -> Callable[..., Any]:
    """A loop of three iterations."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            start = (tf.constant(0), x)
            value = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, v: (i + 1, body(i, v)),
                start,
                maximum_iterations=maximum,
            )[1]
        return tape.gradient(value, x) if gradient else value

    return step


def test_a_dense_network_compiles_for_certain() -> None:
    assert verdicts(trained(L.Dense(4, "relu"), L.Flatten(), L.Dense(2)), [2, 6, 3]) == (True, [])


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [L.LSTM(4)],
        lambda: [L.GRU(4)],
        lambda: [L.SimpleRNN(4, return_sequences=True)],
    ],
    ids=["LSTM", "GRU", "sequences"],
)
def test_a_recurrent_network_compiles(layers: Callable[[], list[Any]]) -> None:
    assert verdicts(trained(*layers()), [2, 6, 3]) == (False, [])


@pytest.mark.parametrize("layer", [L.LSTM, *thorough([L.GRU, L.SimpleRNN])])
def test_layers_before_a_recurrent_layer_are_trained(layer: Any) -> None:
    step = trained(L.Dense(3), L.Bidirectional(layer(4, return_sequences=True)), layer(4))

    def as_in_a_replica(x: Any) -> Any:
        with traced_anew():
            return step(x)

    assert verdicts(as_in_a_replica, [2, 6, 3]) == (False, [])


@pytest.mark.parametrize("layer", [L.LSTM, *thorough([L.GRU, L.SimpleRNN])])
def test_a_recurrent_layer_compiles_for_batches_of_any_size(layer: Any) -> None:
    layers = [L.Bidirectional(layer(4, return_sequences=True)), layer(4, dropout=0.1)]
    model = keras.Sequential([keras.Input((6, 3)), *layers])
    assert verdicts(lambda x: model(x, training=False), [None, 6, 3]) == (False, [])


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loop_with_a_known_length_compiles(gradient: bool) -> None:
    assert verdicts(loop_of(lambda i, v: tf.tanh(v) * 2.0, 3, gradient), [2, 3]) == (False, [])


def sliced(i: Any, value: Any) -> Any:
    return tf.ensure_shape(tf.concat([value[: i + 1], value[i + 1 :]], 0), [2, 3])


def written(i: Any, value: Any) -> Any:
    array = tf.TensorArray(tf.float32, 2, element_shape=None, infer_shape=False)
    array = array.write(0, value).write(1, value[0])
    whole, row = array.read(0), array.read(1)
    return tf.ensure_shape(whole, [2, 3]) * tf.ensure_shape(row, [3])


def ranged(i: Any, value: Any) -> Any:
    return value + tf.reduce_sum(tf.cast(tf.range(i), tf.float32))


def decoded(i: Any, value: Any) -> Any:
    return value + tf.strings.to_number(tf.strings.as_string(value))


def growing(x: Any) -> Any:
    return tf.while_loop(
        lambda v: tf.shape(v)[0] < 20,
        lambda v: tf.concat([v, v], 0),
        [x],
        shape_invariants=[tf.TensorShape([None, 3])],
    )


@pytest.mark.parametrize(
    "function",
    [
        *map(loop_of, [sliced, written, ranged, decoded]),
        loop_of(lambda i, v: tf.tanh(v), None, gradient=True),
        growing,
    ],
    ids=["sliced", "written", "ranged", "decoded", "endless", "growing"],
)
def test_the_compiler_refuses_other_loops(function: Callable[..., Any]) -> None:
    sure, problems = verdicts(function, [2, 3])
    assert not sure
    assert problems
