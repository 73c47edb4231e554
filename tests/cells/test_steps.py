"""Many steps of a cell: the same numbers as training by hand, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.tiers import thorough

import tpunb
from tpunb.cells.steps_per_loop import StepsPerLoop
from tpunb.errors import CellError, TpuWarning
from tpunb.tensorflow.connection.connection import Connection

STEP = """
images, labels = batch
with tf.GradientTape() as tape:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
    loss = tf.reduce_mean(losses)
gradient = ctx.all_reduce("mean", tape.gradient(loss, weights))
weights.assign_sub(0.1 * gradient)
"""
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=[256, 12]).astype("float32")
LABELS = IMAGES[:, :4].argmax(1).astype("int32")


@pytest.fixture(scope="module")
def connection(tf: Any) -> Iterator[Connection]:
    with tpunb.connect(simulate=4, strict={"float64": False}) as connection:
        yield connection


@pytest.fixture
def names(tf: Any, connection: Connection) -> dict[str, Any]:
    """A notebook's names, with weights of zero."""
    with connection.strategy.scope():
        weights = tf.Variable(tf.zeros([12, 4]))
    return {"tf": tf, "weights": weights}


@pytest.fixture
def dataset(tf: Any) -> Any:
    """Sixteen batches of 16."""
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(16, drop_remainder=True)


results_by_hand: dict[tuple[int, int], tuple[Any, list[float]]] = {}
"""Results of training by hand, by batch size and number of steps."""


def by_hand(tf: Any, dataset: Any, steps: int, size: int = 16) -> tuple[Any, list[float]]:
    """Train on a single device, once for each size and number of steps."""
    if (size, steps) not in results_by_hand:
        results_by_hand[size, steps] = trained_by_hand(tf, dataset, steps)
    return results_by_hand[size, steps]


def trained_by_hand(tf: Any, dataset: Any, steps: int) -> tuple[Any, list[float]]:
    weights, losses = tf.Variable(tf.zeros([12, 4])), []
    for images, labels in dataset.repeat().take(steps):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
            loss = tf.reduce_mean(each)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        losses.append(float(loss))
    return weights.numpy(), losses


def weights_of(names: dict[str, Any]) -> list[Any]:
    return [part.numpy() for part in names["weights"].values]


def check(names: dict[str, Any], expected: Any) -> None:
    for part in weights_of(names):
        np.testing.assert_allclose(part, expected, atol=1e-5)


@pytest.mark.parametrize("steps_per_loop", [None, 7, *thorough([1, 40])])
def test_results_equal_training_by_hand(
    tf: Any, connection: Any, names: dict[str, Any], dataset: Any, steps_per_loop: int | None
) -> None:
    run = connection.cells.steps(
        STEP, names, data=dataset.repeat(), steps=40, steps_per_loop=steps_per_loop, plot=["loss"]
    )
    run.go()
    expected, losses = by_hand(tf, dataset, 40)
    check(names, expected)
    assert run.done == 40
    np.testing.assert_allclose(run.history.values("loss"), losses, atol=1e-5)
    assert run.history.steps("loss").tolist() == list(range(1, 41))
    columns = run.history.columns("loss")
    assert columns.lows is not None
    assert (columns.lows <= columns.values).all()
    assert {"images", "labels", "losses", "loss", "gradient"} <= run.assigned.keys()
    np.testing.assert_allclose(
        np.mean([part.numpy() for part in run.assigned["loss"].values]), losses[-1], atol=1e-5
    )


def test_results_equal_fit(tf: Any, connection: Any, dataset: Any, fresh_keras_names: None) -> None:
    import keras

    trained = []
    for by_cell in (True, False):
        keras.utils.set_random_seed(1)
        with connection.strategy.scope():
            model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
            optimizer = keras.optimizers.SGD(0.1)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=optimizer, loss=loss)
        if by_cell:
            source = """
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, model(images, training=True)))
                scaled = loss / num_replicas
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            """.replace("\n            ", "\n")
            with connection.strategy.scope():
                optimizer = keras.optimizers.SGD(0.1)
            names = {"tf": tf, "model": model, "optimizer": optimizer}
            connection.cells.steps(
                source, names, data=dataset, names=("images", "labels"), steps_per_loop=5
            ).go()
        else:
            model.fit(dataset, epochs=1, verbose=0, shuffle=False)
        trained.append(model.get_weights())
    for by_cell_weights, by_fit_weights in zip(*trained, strict=True):
        np.testing.assert_allclose(by_cell_weights, by_fit_weights, atol=1e-5)


def test_names_pass_from_step_to_step(connection: Any, tf: Any) -> None:
    names: dict[str, Any] = {"tf": tf, "total": 0, "pair": (tf.constant(0), tf.constant(1.0))}
    source = "total = total + replica_id\npair = (pair[0] + 1, pair[1] * 2.0)\n"
    run = connection.cells.steps(source, names, steps=20, steps_per_loop=6)
    run.go()
    assert [int(part) for part in run.assigned["total"].values] == [0, 20, 40, 60]
    assert [int(part) for part in run.assigned["pair"][0].values] == [20] * 4
    assert [float(part) for part in run.assigned["pair"][1].values] == [2.0**20] * 4
    assert run.timings.steps_per_loop == 6


def test_a_changing_shape_prevents_loops(connection: Any, tf: Any) -> None:
    names = {"tf": tf, "x": tf.zeros([1])}
    run = connection.cells.steps("x = tf.concat([x, x], 0)", names, steps=6, steps_per_loop=3)
    run.go()
    assert run.assigned["x"].values[0].shape == [64]


def test_traced_once(connection: Any, names: dict[str, Any], dataset: Any) -> None:
    def run() -> Any:
        steps = connection.cells.steps(
            STEP, names, data=dataset.repeat(), steps=30, steps_per_loop=10, plot=["loss"]
        )
        steps.go()
        return steps

    assert run().timings.trace is not None
    before = connection.cells.traces
    for _ in range(3):
        assert run().timings.trace is None
    assert connection.cells.traces == before


class Sources:
    """Sixteen batches, in every form that a run accepts."""

    def __init__(self, tf: Any, strategy: Any, dataset: Any) -> None:
        self.tf, self.strategy, self.dataset = tf, strategy, dataset

    def a_dataset(self) -> Any:
        return self.dataset

    def a_distributed_dataset(self) -> Any:
        return self.strategy.experimental_distribute_dataset(self.dataset)

    def a_distributed_iterator(self) -> Any:
        return iter(self.a_distributed_dataset())

    def an_iterator(self) -> Any:
        return iter(self.dataset)

    def a_function(self) -> Any:
        def make(context: Any) -> Any:
            return self.dataset.unbatch().batch(context.get_per_replica_batch_size(16))

        return make

    def arrays(self) -> Any:
        return (IMAGES, LABELS)

    def a_generator(self) -> Any:
        return (batch for batch in self.dataset.as_numpy_iterator())

    def a_list(self) -> Any:
        return list(self.dataset.as_numpy_iterator())

    def unknown_length(self) -> Any:
        return self.dataset.filter(lambda images, labels: True)


SOURCES = [name for name in vars(Sources) if not name.startswith("_")]


@pytest.mark.parametrize("source", SOURCES)
def test_data_of_all_kinds(
    tf: Any, connection: Any, names: dict[str, Any], dataset: Any, source: str
) -> None:
    data = getattr(Sources(tf, connection.strategy, dataset), source)()
    run = connection.cells.steps(STEP, names, data=data, plot=["loss"])
    run.go()
    steps = 2 if source == "arrays" else 16
    size = 128 if source == "arrays" else 16
    assert run.done == steps
    check(names, by_hand(tf, dataset.unbatch().batch(size), steps, size)[0])


def test_other_names_for_the_parts_of_a_batch(tf: Any, connection: Any) -> None:
    numbers = tf.data.Dataset.range(64)
    pairs = tf.data.Dataset.zip((numbers, numbers.map(tf.negative)))
    data = pairs.batch(8, drop_remainder=True)
    names = {"tf": tf}
    for part_names, sign in ((("a", "b"), 1), (("b", "a"), -1)):
        run = connection.cells.steps(
            "loss = tf.reduce_sum(a)\n",
            names,
            data=data,
            names=part_names,
            steps_per_loop=3,
            plot=["loss"],
        )
        run.go()
        assert (run.history.values("loss") * sign >= 0).all()
        assert run.history.values("loss").sum() * 4 == sign * sum(range(64))


def test_an_uneven_last_batch(tf: Any, connection: Any) -> None:
    odd = tf.data.Dataset.range(22).batch(8)
    names = {"tf": tf}
    source = "seen = tf.reduce_sum(batch)\n"
    for steps_per_loop in (1, 2):
        with pytest.warns(TpuWarning, match="6 examples for 4 replicas: 1 of them gets none"):
            run = connection.cells.steps(
                source,
                names,
                data=odd,
                steps_per_loop=steps_per_loop,
                plot=["seen"],
                reduce={"seen": "sum"},
            )
        run.go()
        assert run.history.values("seen").tolist() == [28, 92, 111]


def test_an_iterator_continues(
    tf: Any, connection: Any, names: dict[str, Any], dataset: Any
) -> None:
    distributed = connection.strategy.experimental_distribute_dataset(dataset.repeat())
    iterator = iter(distributed)
    for _ in range(3):
        connection.cells.steps(STEP, names, data=iterator, steps=11, steps_per_loop=4).go()
    check(names, by_hand(tf, dataset, 33)[0])


def stop_after(seconds: float | None, go: Callable[[], None]) -> bool:
    """Run, and press the stop button after some seconds if the run has not ended.

    Returns:
        Whether the run ended without an interrupt.
    """
    over = threading.Event()
    lock = threading.Lock()

    def press() -> None:
        if not over.wait(seconds):
            with lock:
                if not over.is_set():
                    os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        if seconds is not None:
            thread.start()
        go()
        with lock:
            over.set()
        returned = True
    except KeyboardInterrupt:
        returned = False  # pressed before the run began or after it ended
    if seconds is not None:
        thread.join()
    return returned


@pytest.mark.parametrize("steps_per_loop", thorough([1, 60]))
def test_interrupted_runs_continue(
    tf: Any,
    connection: Any,
    names: dict[str, Any],
    dataset: Any,
    steps_per_loop: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Do not cut loops short: this is not tested here, but happens on a busy machine.
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 120.0)
    run = connection.cells.steps(
        STEP, names, data=dataset.repeat(), steps=600, steps_per_loop=steps_per_loop, plot=["loss"]
    )
    moments = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    stops = 0
    while run.done < 600:
        returned = stop_after(moments.pop(0) if moments else None, run.go)
        stops += run.stopped
        first, *others = weights_of(names)
        for part in others:
            np.testing.assert_array_equal(first, part)
        assert len(run.history) == run.done
        assert run.stopped == (run.done < 600) or not returned
    assert stops >= 1
    expected, losses = by_hand(tf, dataset, 600)
    check(names, expected)
    np.testing.assert_allclose(run.history.values("loss"), losses, atol=1e-4)


def test_a_second_interrupt_is_an_ordinary_one(connection: Any, tf: Any) -> None:
    def interrupt(_: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    class Watch:
        def tracing(self, phase: str) -> None:
            pass

        def set_steps(self, steps: int, examples: int | None) -> None:
            interrupt(steps)

    run = connection.cells.steps("x = replica_id", {"tf": tf}, steps=100)
    run.watcher = Watch()
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.done == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def failing(tf: Any, good: int) -> Any:
    def batches() -> Iterator[Any]:
        for number in range(good):
            yield np.full([8], number, "float32")
        raise ValueError("the disk is full")

    return tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([8], tf.float32))


@pytest.mark.parametrize("endless", [False, True])
def test_data_that_fails(connection: Any, tf: Any, endless: bool) -> None:
    with connection.strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    data = failing(tf, 30).repeat() if endless else failing(tf, 30)
    source = "loss = tf.reduce_mean(batch)\ncount = total.assign_add(1.0 + 0.0 * loss)\n"
    names = {"tf": tf, "total": total}
    run = connection.cells.steps(
        source, names, data=data, steps=100, steps_per_loop=8, plot=["loss"]
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="the disk is full") as caught:
        run.go()
    assert run.done == 30
    assert [float(part) for part in total.values] == [30.0] * 4
    assert caught.value.tpunb_step == 31
    # A loop that fails loses its own part of the curve, and no more.
    assert len(run.history) >= 30 - 8


def test_an_error_in_a_step(connection: Any, tf: Any) -> None:
    source = "tf.debugging.assert_less(batch, 20.0, 'too large')\nx = batch\n"
    data = tf.data.Dataset.range(40).map(lambda n: tf.cast(n, tf.float32)).batch(4, True)
    run = connection.cells.steps(source, {"tf": tf}, data=data, steps_per_loop=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large") as caught:
        run.go()
    assert run.done == 5
    assert caught.value.tpunb_lines == [2]
    assert caught.value.tpunb_step == 6


def test_nan_gives_a_single_warning(connection: Any, tf: Any) -> None:
    data = tf.data.Dataset.range(80).map(lambda n: tf.cast(n, tf.float32)).batch(4, True)
    source = "loss = tf.reduce_mean(tf.math.log(30.0 - batch))\n"
    for steps_per_loop in (1, 5):
        run = connection.cells.steps(
            source, {"tf": tf}, data=data, steps_per_loop=steps_per_loop, plot=["loss"]
        )
        with pytest.warns(
            RuntimeWarning, match="`loss` is not finite at step 8.*first time"
        ) as caught:
            run.go()
        assert len(caught) == 1
        assert run.done == 20
        assert run.history.first_nonfinite("loss") == 8


@pytest.mark.parametrize("loop", [1, 4, None])
def test_a_reduced_name_passes_on_reduced(tf: Any, connection: Any, loop: int | None) -> None:
    names = {"tf": tf, "x": tf.constant(1.0)}
    source = "x = x + tf.cast(replica_id, tf.float32)"
    run = connection.cells.steps(source, names, steps=12, steps_per_loop=loop, reduce={"x": "mean"})
    run.go()
    assert float(run.assigned["x"]) == 1.0 + 12 * 1.5  # the mean of the replicas 0 to 3
    assert run.timings.steps_per_loop == 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"steps": 0}, "positive whole number"),
    "half a step": ({"steps": 1.5}, "positive whole number"),
    "a loop that is too long": ({"steps": 3, "steps_per_loop": 5}, "longer than the 3 steps"),
    "no end": ({"data": "endless"}, "never ends"),
    "a loop without an end": ({"steps_per_loop": 2}, "number of steps is missing"),
    "a name that is not assigned": ({"steps": 2, "plot": ["lose"]}, "Did you mean `loss`"),
    "a name that is no number": ({"steps": 2, "plot": ["batch2"]}, r"its shape is \[2\]"),
    "single examples": ({"data": "single"}, "single examples"),
    "batches that do not divide": ({"data": "indivisible"}, "A batch of 6"),
    "batches that turn out not to": ({"data": "uneven"}, "A batch of 6"),
    "no data": ({"data": 5}, "holds no batches"),
    "arrays of two lengths": ({"data": "unequal"}, "one length along their first axis"),
    "too few examples": ({"data": "few"}, "too few"),
    "another structure": ({"data": "changing"}, "unlike the batches before"),
    "too many parts": ({"data": "pairs", "names": ("a", "b", "c")}, "2 parts, and --as names 3"),
    "an early end": ({"data": "short", "steps": 10}, "ended after 3 of 10"),
}


@pytest.mark.filterwarnings("ignore:Each batch has 6 examples:tpunb.errors.TpuWarning")
@pytest.mark.parametrize("case", BAD)
def test_bad_input(connection: Any, tf: Any, case: str) -> None:
    data = tf.data.Dataset
    sources = {
        "endless": data.range(8).batch(4, True).repeat(),
        "single": data.range(8),
        "indivisible": data.range(12).batch(6, True),
        "uneven": data.range(12).batch(6),
        "unequal": (np.zeros([8]), np.zeros([7])),
        "few": np.zeros([3]),
        "changing": [np.zeros([4]), (np.zeros([4]), np.zeros([4]))],
        "pairs": data.zip((data.range(8), data.range(8))).batch(4, True),
        "short": data.range(12).batch(4, True),
    }
    options, message = BAD[case]
    data_name = options.get("data")
    options = {
        **options,
        "data": sources.get(data_name, data_name) if isinstance(data_name, str) else data_name,
    }
    source = "loss = tf.constant(1.0)\nbatch2 = tf.zeros([2])\nuse = batch\n"
    source = source if options["data"] is not None else source.replace("use = batch\n", "")

    from tpunb.cells.step_run import raise_if_ended_early

    def attempt() -> None:
        run = connection.cells.steps(source, {"tf": tf}, **options)
        run.go()
        raise_if_ended_early(run)

    with pytest.raises(CellError, match=message):
        attempt()


def test_a_function(connection: Any, tf: Any, names: dict[str, Any], dataset: Any) -> None:
    weights = names["weights"]

    def step(images: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
            loss = tf.reduce_mean(each)
        gradient = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.MEAN, tape.gradient(loss, weights)
        )
        weights.assign_sub(0.1 * gradient)
        return {"loss": loss, "labels": labels}

    result = connection.run(
        step,
        dataset.repeat(),
        steps=20,
        steps_per_loop=6,
        plot="loss",
        reduce={"loss": "mean"},
        gather={"labels": 0},
    )
    expected, losses = by_hand(tf, dataset, 20)
    check(names, expected)
    assert result.steps == 20
    assert not result.stopped
    np.testing.assert_allclose(result.history.values("loss"), losses, atol=1e-5)
    assert tpunb.history is result.history
    assert connection.timings is result.timings
    assert result.timings.steps == 20
    second = connection.run(lambda batch: {"n": tf.size(batch[0])}, dataset, plot=("n",))
    assert second.history.values("n").tolist() == [4 * 12] * 16
    nothing = connection.run(lambda: tf.constant(1), steps=3)
    assert nothing.steps == 3
    with pytest.raises(CellError, match="cannot be run"):
        connection.run(5)


def test_optimizers_are_built_in_the_scope(
    connection: Any, tf: Any, dataset: Any, fresh_keras_names: None
) -> None:
    import keras

    with connection.strategy.scope():
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
        other = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
        optimizer = keras.optimizers.Adam()
    source = """
images, labels = batch
variables = model.trainable_variables
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(images) - other(images))
optimizer.apply(tape.gradient(loss, variables), variables)
"""
    names = {"tf": tf, "model": model, "other": other, "optimizer": optimizer}
    run = connection.cells.steps(source, names, data=dataset, steps_per_loop=4)
    run.go()
    assert int(optimizer.iterations.numpy()) == 16
    outside = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    for name, value in (("model", outside), ("optimizer", keras.optimizers.Adam())):
        with pytest.raises(CellError, match=f"Variables of `{name}` were made outside"):
            connection.cells.steps(source, {**names, name: value}, data=dataset).go()


def paced(
    pace: StepsPerLoop, remaining: float, step: float, trace: float = 0.5, *, repeated: bool = False
) -> list[int]:
    """Return the calls that a pace chooses if a step takes `step` seconds."""
    calls = []
    traced = {1: repeated, 2: repeated}
    while remaining > 0:
        count = pace.choose(remaining)
        kind = min(count, 2)
        cost = None if traced[kind] else trace
        traced[kind] = True
        pace.took(count, count * step + (cost or 0.0), trace=cost)
        calls.append(count)
        remaining -= count
    return calls


def test_loops_of_a_quarter_of_a_second() -> None:
    calls = paced(StepsPerLoop(None, loopable=True), 10_000, 1e-3)
    assert sum(calls) == 10_000
    assert calls[:3] == [1, 1, 1]
    assert calls[-1] == 1  # its values go to the notebook
    assert max(calls) == 200
    assert calls.count(1) <= 5


def test_two_single_steps_determine_the_length_of_loops() -> None:
    calls = paced(StepsPerLoop(None, loopable=True), 1000, 1e-3, repeated=True)
    assert calls == [1, 1, 50, 200, 200, 200, 200, 147, 1]


@pytest.mark.parametrize("step", [0.9e-3, 1.1e-3, 1.4e-3, 1.7e-3, 2.4e-3, 3.6e-3, 5.1e-3, 9e-3])
def test_loops_use_most_of_their_time(step: float) -> None:
    longest = max(paced(StepsPerLoop(None, loopable=True), 10_000, step))
    assert 0.16 < longest * step <= 0.25


@pytest.mark.parametrize(
    ("remaining", "step", "most"), [(10, 1e-3, 1), (1000, 0.2, 1), (100_000, 1e-4, 2000)]
)
def test_loops_are_used_only_if_they_pay(remaining: int, step: float, most: int) -> None:
    calls = paced(StepsPerLoop(None, loopable=True), remaining, step)
    assert sum(calls) == remaining
    assert max(calls) == most


@pytest.mark.parametrize("fixed", [1, 2, 7, 100])
def test_loops_of_a_given_length(fixed: int) -> None:
    calls = paced(StepsPerLoop(fixed, loopable=True), 100, 1e-3)
    assert sum(calls) == 100
    assert max(calls) == min(fixed, 98)
    assert paced(StepsPerLoop(fixed, loopable=False), 9, 1e-3) == [1] * 9


@pytest.mark.parametrize(
    ("drop_remainder", "steps", "refused"),
    [(False, None, True), (False, 3, False), (True, None, False)],
)
def test_an_open_batch_is_refused_before_its_loop(
    connection: Any,
    tf: Any,
    capsys: pytest.CaptureFixture[str],
    drop_remainder: bool,
    steps: int | None,
    refused: bool,
) -> None:
    data = tf.data.Dataset.from_tensor_slices(IMAGES).batch(16, drop_remainder=drop_remainder)
    source = "print('traced')\ntotal = tf.reduce_sum(batch[::2])"
    run = connection.cells.steps(source, {"tf": tf}, data=data, steps=steps)
    if refused:
        with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is not fixed") as error:
            run.go()
        assert list(error.value.tpunb_lines) == [3]
        assert run.done == 0
        assert "traced" not in capsys.readouterr().out
    else:
        run.go()
        assert run.done == (steps or 16)


def test_a_check_refuses_an_open_batch_as_its_loop_does(connection: Any, tf: Any) -> None:
    for drop_remainder in (False, True):
        data = tf.data.Dataset.from_tensor_slices(IMAGES).batch(16, drop_remainder=drop_remainder)
        report = connection.cells.check("total = tf.reduce_sum(batch[::2])", {"tf": tf}, data=data)
        codes = [error.code for error in report.errors]
        assert codes == ([] if drop_remainder else ["dynamic-batch"])
