"""A TPU's arithmetic: bfloat16 factors, float32 sums."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.bfloat16 import bf, whole_numbers
from support.strategies import each, run, strategy_of
from support.tiers import THOROUGH, thorough

from tpunb.tensorflow.virtual.private_names import xla_data_pb2
from tpunb.tensorflow.virtual.replicate.matrix_unit import FACTORS, MatrixUnit
from tpunb.virtual.arithmetic import ArithmeticNameError


class Ops:
    """TensorFlow's operations, with arrays as captured inputs."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation: Callable[..., Any] = getattr(tf.raw_ops, name)
        return lambda **options: operation(
            **{key: captured(value) for key, value in options.items()}
        )


def captured(value: Any) -> Any:
    """Turn arrays into values that no compiler knows."""
    if isinstance(value, list):
        return [captured(array) for array in value]
    if not isinstance(value, np.ndarray):
        return value
    with tf.init_scope():
        return tf.constant(value)


OPS = Ops()
ONES = [1, 1, 1, 1]
REPLICAS = 2
X, W = whole_numbers(4, 16, seed=1), whole_numbers(16, 8, seed=2)
MIXED = bf(X) @ bf(W)


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(REPLICAS, arithmetic="tpu")


@pytest.fixture
def in_float32() -> Iterator[None]:
    """The user requests float32, as on a TPU."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def with_gradients(function: Callable[..., Any], gradient: np.ndarray) -> Callable[..., Any]:
    """A function with its result and the gradients of a weighted sum by each argument."""

    def with_gradient(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(args)
            result = function(*args)
        return result, *tape.gradient(result, args, gradient)

    return with_gradient


Shape = tuple[int, ...]
CASES: dict[str, tuple[Callable[[Any, Any], Any], Shape, Shape]] = {
    "matmul": (tf.matmul, (4, 16), (16, 8)),
    "batch matmul": (tf.matmul, (3, 4, 16), (3, 16, 8)),
    "einsum": (lambda x, w: tf.einsum("ij,jk->ik", x, w), (4, 16), (16, 8)),
    "tensordot": (lambda x, w: tf.tensordot(x, w, 1), (4, 16), (16, 8)),
    "conv2d": (lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"), (1, 4, 4, 2), (2, 2, 2, 3)),
    "conv3d": (
        lambda x, w: tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "VALID"),
        (1, 1, 4, 4, 2),
        (1, 2, 2, 2, 3),
    ),
    "depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, ONES, "VALID"),
        (1, 4, 4, 2),
        (2, 2, 2, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_and_their_gradients_round_their_factors(strategy: Any, name: str) -> None:
    """The sums are exact, so results agree to the bit; they differ from those of float32."""
    function, *shapes = CASES[name]
    x, w = (whole_numbers(*shape, seed=seed) for seed, shape in enumerate(shapes))
    g = whole_numbers(*function(x, w).shape, seed=2)
    results = run(strategy, with_gradients(function, g), x, w)[-1]
    expected = with_gradients(function, bf(g))(*map(tf.constant, (bf(x), bf(w))))
    exact = with_gradients(function, g)(*map(tf.constant, (x, w)))
    for result, rounded, other in zip(results, expected, exact, strict=True):
        np.testing.assert_array_equal(result, rounded)
        assert not np.array_equal(result, other)


def test_rounded_sums_differ_only_by_their_order(strategy: Any) -> None:
    x, w = (np.random.default_rng(seed).normal(size=(64, 64)) for seed in (0, 1))
    x, w = x.astype(np.float32), w.astype(np.float32)
    result = run(strategy, tf.matmul, x, w)[0]
    expected = bf(x).astype(np.float64) @ bf(w).astype(np.float64)
    assert np.abs(result - expected).max() < 64 * np.finfo(np.float32).eps * 16
    assert np.abs(result - x @ w).max() > 0.01


def test_rounding_is_to_nearest_with_ties_to_even(strategy: Any) -> None:
    special = [1.00390625, 1.01171875, 3.4e38, np.inf, -np.inf, np.nan, 1e-30, -0.0, 3.0]
    values = np.array([special], np.float32)
    result = run(strategy, lambda x: tf.matmul(x, [[1.0]], transpose_a=True), values)[0]
    np.testing.assert_array_equal(result[:, 0], bf(values)[0])


def test_each_replica_rounds_its_factors(strategy: Any) -> None:
    ones = np.float32(1)
    results = run(strategy, lambda x: tf.matmul(x, W), each(strategy, [X, X + ones]))
    for values, result in zip((X, X + ones), results, strict=True):
        np.testing.assert_array_equal(result, bf(values) @ bf(W))


def in_branch(x: Any, w: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.matmul(x, w), lambda: tf.zeros([4, 8]))


def in_loop(x: Any, w: Any) -> Any:
    start = tf.constant(0), tf.zeros([4, 8])
    return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, tf.matmul(x, w)), start)[1]


def in_collective_loop(x: Any, w: Any) -> Any:
    """A loop that the engine runs for all replicas together."""

    def body(i: Any, _: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return i + 1, context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.matmul(x, w))

    return tf.while_loop(lambda i, _: i < 3, body, (tf.constant(0), tf.zeros([4, 8])))[1]


def in_function(x: Any, w: Any) -> Any:
    return tf.function(lambda x, w: tf.function(tf.matmul)(x, w))(x, w)


def in_compiled_function(x: Any, w: Any) -> Any:
    return tf.function(lambda x, w: in_branch(x, w), jit_compile=True)(x, w)


@pytest.mark.parametrize(
    "function", [in_branch, in_loop, in_collective_loop, in_function, in_compiled_function]
)
def test_products_round_in_any_place(strategy: Any, function: Callable[..., Any]) -> None:
    results = run(strategy, function, X, W)
    np.testing.assert_array_equal(results, [MIXED] * REPLICAS)


def test_gradients_of_a_loop_are_rounded(strategy: Any) -> None:
    g = whole_numbers(4, 8, seed=3)
    results = run(strategy, with_gradients(in_loop, g), X, W)[0]
    np.testing.assert_array_equal(results[1], bf(g) @ bf(W).T)


def test_variables_stay_in_float32(strategy: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(W)

    def step(x: Any) -> Any:
        product = tf.matmul(x, variable)
        variable.assign_add(tf.ones_like(variable))
        return product, tf.matmul(x, variable)

    before, after = run(strategy, step, X)[1]
    np.testing.assert_array_equal(before, MIXED)
    np.testing.assert_array_equal(after, bf(X) @ bf(W + 1))
    np.testing.assert_array_equal(variable.numpy(), W + 1)


def test_other_operations_than_products_are_exact(strategy: Any) -> None:
    def others(x: Any) -> Any:
        outer = tf.einsum("ij,kj->ikj", x, x)
        return x * x, tf.reduce_sum(x * 3), outer, tf.raw_ops.Einsum(inputs=[x], equation="ij->i")

    product, total, outer, rows = run(strategy, others, X)[0]
    np.testing.assert_array_equal(product, X * X)
    np.testing.assert_array_equal(total, (X * 3).sum())
    np.testing.assert_array_equal(outer, X[:, None] * X[None])
    np.testing.assert_array_equal(rows, X.sum(axis=1))


def test_other_types_are_unchanged(strategy: Any) -> None:
    wide = X.astype(np.float64)
    result = run(strategy, lambda x: tf.matmul(x, x, transpose_b=True), wide)[0]
    np.testing.assert_array_equal(result, wide @ wide.T)


def test_patches_of_images_are_rounded(strategy: Any) -> None:
    """A TPU extracts patches by a convolution with ones and zeros."""
    images = whole_numbers(1, 4, 4, 2, seed=1)

    def patches(images: Any) -> Any:
        return tf.image.extract_patches(images, [1, 1, 1, 1], ONES, ONES, "VALID")

    np.testing.assert_array_equal(run(strategy, patches, images)[0], bf(images))


def test_outside_compilation_uses_the_hosts_arithmetic(strategy: Any) -> None:
    def step(x: Any) -> Any:
        return tf.compat.v1.tpu.outside_compilation(lambda x: tf.matmul(x, W), x)

    np.testing.assert_array_equal(run(strategy, step, X)[0], X @ W)


@pytest.mark.usefixtures("in_float32")
def test_requested_float32(strategy: Any) -> None:
    np.testing.assert_array_equal(run(strategy, tf.matmul, X, W)[0], X @ W)


@pytest.mark.parametrize(("precision", "expected"), [(None, MIXED), (1, X @ W), (2, X @ W)])
def test_the_precision_of_xla_products(strategy: Any, precision: Any, expected: Any) -> None:
    from tensorflow.compiler.tf2xla.python import xla

    numbers = xla_data_pb2.DotDimensionNumbers(
        lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]
    )
    config = xla_data_pb2.PrecisionConfig(operand_precision=[precision] * 2) if precision else None

    @tf.function(jit_compile=True)
    def product(x: Any, w: Any) -> Any:
        return xla.dot_general(x, w, numbers, config)

    np.testing.assert_array_equal(run(strategy, product, X, W)[0], expected)


def test_without_tpu_arithmetic_nothing_changes() -> None:
    result = run(strategy_of(REPLICAS), tf.matmul, X, W)[0]
    np.testing.assert_array_equal(result, X @ W)


def test_a_product_rounds_each_factor_once(strategy: Any) -> None:
    """The square of a matrix, and the same factor in two products."""

    @tf.function
    def squares(x: Any) -> Any:
        return tf.matmul(x, x), tf.matmul(x, x, transpose_a=True)

    definition = squares.get_concrete_function(tf.TensorSpec([4, 4])).function_def
    rounded = MatrixUnit(by_default=True).rounded(definition)
    casts = [node.op for node in rounded.node_def].count("Cast")
    assert casts == 2
    assert MatrixUnit(by_default=False).rounded(definition) is definition


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


IMAGES, FILTERS, GRADIENT = zeros(1, 4, 4, 2), zeros(2, 2, 2, 3), zeros(1, 4, 4, 3)
DEPTHWISE, SIX = zeros(2, 2, 2, 3), zeros(1, 4, 4, 6)
VOLUMES, CUBES = zeros(1, 3, 4, 4, 2), zeros(2, 2, 2, 2, 3)
VOLUME_GRADIENT = zeros(1, 3, 4, 4, 3)
SAME = {"strides": ONES, "padding": "SAME"}
SAME_3D = {"strides": [*ONES, 1], "padding": "SAME"}
MATRICES = np.stack([np.eye(4, dtype=np.float32)] * 2)

CALLS: dict[str, Callable[[], Any]] = {
    "MatMul": lambda: OPS.MatMul(a=X, b=W),
    "SparseMatMul": lambda: OPS.SparseMatMul(a=X, b=W),
    "BatchMatMul": lambda: OPS.BatchMatMul(x=MATRICES, y=MATRICES),
    "BatchMatMulV2": lambda: OPS.BatchMatMulV2(x=MATRICES, y=MATRICES),
    "BatchMatMulV3": lambda: OPS.BatchMatMulV3(x=MATRICES, y=MATRICES, Tout=tf.float32),
    "Einsum": lambda: OPS.Einsum(inputs=[X, W], equation="ij,jk->ik"),
    "Conv": lambda: OPS.Conv(input=IMAGES, filter=FILTERS, **SAME),
    "Conv2D": lambda: OPS.Conv2D(input=IMAGES, filter=FILTERS, **SAME),
    "Conv2DBackpropInput": lambda: OPS.Conv2DBackpropInput(
        input_sizes=IMAGES.shape, filter=FILTERS, out_backprop=GRADIENT, **SAME
    ),
    "Conv2DBackpropFilter": lambda: OPS.Conv2DBackpropFilter(
        input=IMAGES, filter_sizes=FILTERS.shape, out_backprop=GRADIENT, **SAME
    ),
    "Conv3D": lambda: OPS.Conv3D(input=VOLUMES, filter=CUBES, **SAME_3D),
    "Conv3DBackpropInputV2": lambda: OPS.Conv3DBackpropInputV2(
        input_sizes=VOLUMES.shape, filter=CUBES, out_backprop=VOLUME_GRADIENT, **SAME_3D
    ),
    "Conv3DBackpropFilterV2": lambda: OPS.Conv3DBackpropFilterV2(
        input=VOLUMES, filter_sizes=CUBES.shape, out_backprop=VOLUME_GRADIENT, **SAME_3D
    ),
    "DepthwiseConv2dNative": lambda: OPS.DepthwiseConv2dNative(
        input=IMAGES, filter=DEPTHWISE, **SAME
    ),
    "DepthwiseConv2dNativeBackpropInput": lambda: OPS.DepthwiseConv2dNativeBackpropInput(
        input_sizes=IMAGES.shape, filter=DEPTHWISE, out_backprop=SIX, **SAME
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda: OPS.DepthwiseConv2dNativeBackpropFilter(
        input=IMAGES, filter_sizes=DEPTHWISE.shape, out_backprop=SIX, **SAME
    ),
    "ExtractImagePatches": lambda: OPS.ExtractImagePatches(
        images=IMAGES, ksizes=[1, 2, 2, 1], strides=ONES, rates=ONES, padding="VALID"
    ),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "solve": lambda: tf.linalg.solve(captured(MATRICES), captured(MATRICES)),
    "svd": lambda: tf.linalg.svd(captured(MATRICES), compute_uv=False),
    "cholesky": lambda: tf.linalg.cholesky(captured(MATRICES)),
    "inverse": lambda: tf.linalg.inv(captured(MATRICES)),
    "cumsum": lambda: tf.cumsum(captured(X)),
    "average pooling": lambda: tf.nn.avg_pool2d(captured(IMAGES), 2, 1, "SAME"),
    "segments": lambda: tf.math.unsorted_segment_sum(captured(X), [0, 1, 0, 1], 3),
}


def precisions(call: Callable[[], Any]) -> set[str]:
    """The precisions that TensorFlow's compiler requests from XLA for a function's products."""
    compiled = tf.function(lambda: call(), jit_compile=True)
    hlo = compiled.experimental_get_compiler_ir()(stage="hlo")
    products = [line for line in hlo.splitlines() if re.search(r" (dot|convolution)\(", line)]
    matches = (re.search(r"operand_precision=\{([^}]*)\}", line) for line in products)
    return {match[1] if match else "default" for match in matches}


@THOROUGH
def test_xla_rounds_the_same_operations_by_default() -> None:
    """TensorFlow's compiler, which is independent of this package, lowers them."""
    explicit = {name for name in FACTORS if name.startswith("Xla")}
    assert set(CALLS) | explicit == set(FACTORS)
    assert {name for name, call in CALLS.items() if precisions(call) != {"default"}} == set()
    assert not any("default" in precisions(call) for call in OTHERS.values())


@pytest.mark.usefixtures("in_float32")
def test_xla_uses_float32_on_request() -> None:
    highest = {"highest,highest"}
    assert {name for name, call in CALLS.items() if precisions(call) != highest} == set()


def test_a_saved_function_is_not_rounded(strategy: Any, tmp_path: Path) -> None:
    """It uses the arithmetic of the machine that loads it."""
    module = tf.Module()
    with strategy.scope():
        module.variable = tf.Variable(W)

    @tf.function(input_signature=[tf.TensorSpec([4, 16])])
    def product(x: Any) -> Any:
        results = strategy.run(lambda x: tf.matmul(x, module.variable), args=(x,))
        return strategy.reduce("MEAN", results, axis=None)

    module.product = product
    np.testing.assert_array_equal(product(X), MIXED)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.product(X), X @ W)


def test_the_environment_sets_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_ARITHMETIC", "tpu")
    assert strategy_of(1).extended.arithmetic == "tpu"
    assert strategy_of(1, arithmetic="cpu").extended.arithmetic == "cpu"
    monkeypatch.setenv("TPUNB_ARITHMETIC", "tup")
    with pytest.raises(ArithmeticNameError, match="'tup'") as raised:
        strategy_of(1)
    assert "'tpu'" in raised.value.fix


# Training, compared with plain TensorFlow whose factors are cast by hand.

BATCH, STEPS, RATE = 32, 20, 0.05
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def rounded(x: Any) -> Any:
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)


def with_casts(product: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A product that casts its factors, also in its gradients."""

    @tf.custom_gradient
    def cast(x: Any, w: Any) -> Any:
        x, w = rounded(x), rounded(w)

        def gradient(g: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                result = product(x, w)
            return tape.gradient(result, [x, w], rounded(g))

        return product(x, w), gradient

    return cast


CONVOLVE = with_casts(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))
MULTIPLY = with_casts(tf.matmul)


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=[BATCH * STEPS, 6, 6, 2]).astype(np.float32)
    return x, (x.sum(axis=(1, 2, 3)) > 0).astype(np.int32)


def network(api: Any) -> Any:
    api.utils.set_random_seed(3)
    return api.Sequential(
        [
            api.layers.InputLayer((6, 6, 2)),
            api.layers.Conv2D(4, 3, padding="same", activation="tanh"),
            api.layers.Flatten(),
            api.layers.Dense(16, activation="relu"),
            api.layers.Dense(2),
        ]
    )


def plain_training(weights: list[np.ndarray], *, casts: bool) -> list[np.ndarray]:
    """Train the network for twenty steps in plain TensorFlow on one device."""
    convolve, multiply = (
        (CONVOLVE, MULTIPLY) if casts else (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), tf.matmul)
    )
    variables = [tf.Variable(weight) for weight in weights]
    filters, filter_bias, dense, dense_bias, last, last_bias = variables

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            h = tf.tanh(convolve(x, filters) + filter_bias)
            h = tf.nn.relu(multiply(tf.reshape(h, [BATCH, -1]), dense) + dense_bias)
            logits = multiply(h, last) + last_bias
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)

    for x, y in tf.data.Dataset.from_tensor_slices(data()).batch(BATCH):
        step(x, y)
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize(
    ("library", "steps_per_execution"),
    [("keras", 5), *thorough([("keras", 1), ("tf_keras", 5)])],
    ids=["Keras 3 with loops", "Keras 3", "tf_keras with loops"],
)
def test_fit_is_plain_tensorflow_with_casts(library: str, steps_per_execution: int) -> None:
    api: Any = pytest.importorskip(library)
    strategy = strategy_of(4, arithmetic="tpu")
    with strategy.scope():
        model = network(api)
        model.compile(
            api.optimizers.SGD(RATE),
            api.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
    start = [variable.numpy() for variable in model.trainable_variables]
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)
    model.fit(batches, verbose=0, shuffle=False)
    trained = [variable.numpy() for variable in model.trainable_variables]
    expected, exact = (plain_training(start, casts=casts) for casts in (True, False))
    for weight, other in zip(trained, expected, strict=True):
        np.testing.assert_allclose(weight, other, **TOLERANCE)
    furthest = max(
        np.abs(weight - other).max() for weight, other in zip(trained, exact, strict=True)
    )
    assert furthest > 10 * TOLERANCE["atol"]
