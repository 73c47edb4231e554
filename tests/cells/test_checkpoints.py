"""Runs that continue from checkpoints give the results of uninterrupted runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook, strategy_of
from support.interrupts import press
from support.tiers import thorough

from tpunb._util.interrupts import Stopped
from tpunb.cells.settings import RunSettings
from tpunb.errors import CellError, TpuWarning
from tpunb.tensorflow.cells import checkpoints
from tpunb.tensorflow.cells.cell_variables import owners_of, plain_variable
from tpunb.tensorflow.cells.steps import Steps
from tpunb.training.checkpoint_settings import CheckpointSettings

TRAIN = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
seen.update_state(loss)
smooth = 0.9 * smooth + loss
count.assign_add(1.0)
loss
"""
COUNT = "count.assign_add(tf.reduce_mean(batch))\nvalue = tf.reduce_mean(batch)"


def data(seed: int | None = 1) -> Any:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    examples = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    return examples.shuffle(64, seed=seed).batch(8, drop_remainder=True).repeat()


def numbers_to(end: int) -> Any:
    return tf.data.Dataset.range(end).map(lambda n: tf.cast(n, tf.float32)).batch(8)


class Session:
    """A notebook in a newly started kernel."""

    def __init__(self, folder: Path | None, kind: str = "virtual") -> None:
        self.book, self.folder, self.message = Notebook(kind), folder, ""
        with self.book.strategy.scope():
            mean = tf.VariableAggregation.MEAN
            self.count = tf.Variable(0.0, aggregation=mean)
        self.book.names |= {"count": self.count, "smooth": tf.constant(0.0)}

    def with_model(self, width: int = 6, keras: Any = keras) -> Session:
        """Add a model whose initial values differ in every session."""
        with self.book.strategy.scope():
            model = keras.Sequential(
                [
                    keras.layers.Input((4,)),
                    keras.layers.Dense(width, activation="relu"),
                    keras.layers.BatchNormalization(),
                    # tf_keras's own dropout keeps its position in TensorFlow, where it cannot be
                    # saved.
                    keras.layers.Dropout(0.3 if keras.__name__ == "keras" else 0.0, seed=1),
                    keras.layers.Dense(1),
                ]
            )
            optimizer, seen = keras.optimizers.Adam(0.01), keras.metrics.Mean()
        self.book.names |= {"model": model, "optimizer": optimizer, "seen": seen}
        return self

    def steps(self, cell: str, count: int | None, batches: Any, **options: Any) -> Steps:
        settings = {"folder": str(self.folder), "every": options.pop("every", 5)}
        settings |= {name: options.pop(name) for name in ("restart", "seconds") if name in options}
        names = ("x", "y") if "(x" in cell else ("batch",)
        run = self.book.runner.steps(
            cell,
            self.book.names,
            data=batches,
            names=names,
            steps=count,
            checkpoint=CheckpointSettings(**settings) if self.folder else None,
            **options,
        )
        run.watcher = self
        return run

    def run(self, cell: str, count: int | None, batches: Any, **options: Any) -> Steps:
        run = self.steps(cell, count, batches, **options)
        run.go()
        self.book.names |= run.assigned
        return run

    def tracing(self, phase: str) -> None:
        pass

    def set_steps(self, steps: int, examples: int | None) -> None:
        pass

    def resumed(self, steps: int, text: str) -> None:
        self.message = text

    def numbers(self) -> list[Any]:
        """Return all copies of all variables, and the values that pass from step to step."""
        names = self.book.names
        keras_variables = [
            *names["model"].variables,
            *names["optimizer"].variables,
            *names["seen"].variables,
        ]
        variables = [plain_variable(variable) for variable in keras_variables]
        values = [part.numpy() for each in variables for part in getattr(each, "values", (each,))]
        return [*values, self.count.numpy(), *self.book.each(names["smooth"])]


def assert_equal(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("kind", "package"),
    [("virtual", "keras"), *thorough([("mirrored", "keras"), ("virtual", "tf_keras")])],
)
def test_a_continued_run_equals_an_uninterrupted_run(
    tmp_path: Path, kind: str, package: str
) -> None:
    """Weights, slots, each replica's batch statistics, dropout, metrics, names and curves."""
    keras = pytest.importorskip(package)
    keras.utils.set_random_seed(1)
    first = Session(tmp_path / "run", kind).with_model(keras=keras)
    copies = [weight.numpy() for weight in first.book.names["model"].variables]
    first.run(TRAIN, 13, data(), plot=("loss",))
    uninterrupted = Session(None, kind).with_model(keras=keras)
    for variable, weight in zip(uninterrupted.book.names["model"].variables, copies, strict=True):
        variable.assign(weight)
    expected = uninterrupted.run(TRAIN, 20, data(), plot=("loss",))
    resumed = Session(tmp_path / "run", kind).with_model(keras=keras)  # other initial weights
    continued = resumed.run(TRAIN, 20, data(), plot=("loss",))
    assert resumed.message == (
        f"Continues at step 13 of 20 from {tmp_path / 'run'}. To begin again: --restart."
    )
    assert_equal(resumed.numbers(), uninterrupted.numbers())
    assert continued.history.as_dict() == expected.history.as_dict()
    assert resumed.book.each(continued.value) == uninterrupted.book.each(expected.value)


def test_a_complete_run_is_restored(tmp_path: Path) -> None:
    first = Session(tmp_path)
    run = first.run(COUNT, None, numbers_to(64), plot=("value",))
    resumed = Session(tmp_path)
    batches = numbers_to(64)
    restored = resumed.run(COUNT, None, batches, plot=("value",))
    assert "The run was complete, at step 8 of 8" in resumed.message
    assert restored.done == 8
    assert resumed.count.numpy() == first.count.numpy() == 252
    assert resumed.book.each(resumed.book.names["value"]) == first.book.each(run.assigned["value"])
    assert restored.history.values("value").tolist() == run.history.values("value").tolist()
    longer = Session(tmp_path)
    longer.run(COUNT, 10, numbers_to(80))
    assert "Continues at step 8 of 10" in longer.message
    assert longer.count.numpy() == sum(range(80)) / 8


def test_restarting(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 7, numbers_to(64))
    resumed = Session(tmp_path)
    resumed.run(COUNT, 2, numbers_to(64), restart=True)
    assert resumed.message == ""
    assert resumed.count.numpy() == sum(range(16)) / 8
    assert {file.name.partition(".")[0] for file in tmp_path.iterdir()} == {"checkpoint", "step-2"}


@pytest.mark.parametrize("every", [1, 4, 7])
def test_steps_at_which_checkpoints_are_saved(tmp_path: Path, every: int) -> None:
    saved: list[int] = []
    write = checkpoints.Checkpoints._write

    def record(self: Any, state: Any) -> None:
        saved.append(state.done)
        write(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "_write", record)
        Session(tmp_path).run(COUNT, 16, numbers_to(160), every=every, steps_per_loop=3)
    assert saved == [*range(every, 16, every), 16]
    assert len(list(tmp_path.glob("*.index"))) == min(2, len(saved))


def test_checkpoints_at_time_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(
        checkpoints.Checkpoints, "_write", lambda _, state: saved.append(state.done)
    )
    Session(tmp_path).run(COUNT, 6, numbers_to(64), every=None, seconds=0.0)
    assert saved[0] == 1  # always due, but saving takes a while
    assert saved[-1] == 6
    saved.clear()
    Session(tmp_path).run(COUNT, 6, numbers_to(64), every=None, seconds=3600)
    assert saved == [6]


def test_the_stop_button_saves(tmp_path: Path) -> None:
    first = Session(tmp_path)
    run = first.steps(COUNT, 1000, numbers_to(8000), every=10_000)
    presses = iter([press])
    first.set_steps = lambda steps, _: next(presses, int)() if steps >= 5 else None  # type: ignore
    run.go()
    assert run.stopped
    resumed = Session(tmp_path)
    resumed.run(COUNT, run.done + 1, numbers_to(8000))
    assert f"Continues at step {run.done} of" in resumed.message
    assert resumed.count.numpy() == sum(range(8 * (run.done + 1))) / 8


def test_stopping_while_earlier_batches_are_skipped(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 5, numbers_to(64))
    batches = numbers_to(64)

    def batches_with_press() -> Any:
        for batch in batches:
            next(presses, int)()
            yield batch

    presses = iter([press])
    resumed = Session(tmp_path)
    with pytest.raises(Stopped, match="before the checkpoint were read again: no step was made"):
        resumed.run(COUNT, 6, batches_with_press())
    assert resumed.count.numpy() == 0
    resumed.run(COUNT, 6, batches)
    assert resumed.count.numpy() == sum(range(48)) / 8


def test_data_in_another_order(tmp_path: Path) -> None:
    Session(tmp_path).with_model().run(TRAIN, 5, data(seed=1))
    resumed = Session(tmp_path).with_model()
    with pytest.warns(TpuWarning, match=r"The data is not the same as before: batch 5 differs"):
        resumed.run(TRAIN, 6, data(seed=2))
    assert resumed.count.numpy() == 6


def test_data_that_ends_too_early(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 8, numbers_to(64))
    with pytest.raises(CellError, match="The data ends after 2 batches, before step 8 of the"):
        Session(tmp_path).run(COUNT, 9, iter(numbers_to(16)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.with_model(width=7), "`model` is not the same as in .*: variable 0 of .* is "),
        (lambda s: s.book.names.update(model=keras.Sequential([keras.layers.Dense(1)])),
         "`model` has .* variables?, and .* in the checkpoint"),
        (lambda s: s.book.names.update(seen=None), "the difference is `seen`"),
    ],
)  # fmt: skip
def test_another_model(tmp_path: Path, change: Callable[[Session], Any], message: str) -> None:
    Session(tmp_path).with_model().run(TRAIN, 2, data())
    resumed = Session(tmp_path).with_model()
    change(resumed)
    with pytest.raises(CellError, match=message) as refused:
        resumed.run(TRAIN, 3, data())
    assert "--restart" in refused.value.fix
    assert resumed.count.numpy() == 0


def test_another_cell(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 2, numbers_to(64))
    Session(tmp_path).run(f"# a comment\n{COUNT}", 3, numbers_to(64))
    with pytest.raises(CellError, match="is of another cell, or this cell has changed since"):
        Session(tmp_path).run(f"{COUNT} + 1.0", 3, numbers_to(64))


def test_checkpoints_of_other_programs_are_kept(tmp_path: Path) -> None:
    other_checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0))
    tf.train.CheckpointManager(other_checkpoint, str(tmp_path), 2).save()
    before = sorted(tmp_path.iterdir())
    for restart in (False, True):
        with pytest.raises(CellError, match="has checkpoints that %%tpu_run did not save"):
            Session(tmp_path).run(COUNT, 2, numbers_to(64), restart=restart)
    assert sorted(tmp_path.iterdir()) == before


def test_a_broken_checkpoint(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 2, numbers_to(64))
    for file in tmp_path.glob("step-2.data*"):
        file.write_bytes(b"")
    with pytest.raises(CellError, match="cannot be read") as refused:
        Session(tmp_path).run(COUNT, 3, numbers_to(64))
    assert "--restart" in refused.value.fix
    resumed = Session(tmp_path)
    resumed.run(COUNT, 3, numbers_to(64), restart=True)
    assert resumed.count.numpy() == sum(range(24)) / 8


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CellError, match="Checkpoints cannot be kept in"):
        Session(tmp_path / "file" / "run").run(COUNT, 2, numbers_to(64))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.Checkpoints, "_write", full)
    session = Session(tmp_path)
    with pytest.warns(
        TpuWarning, match="No checkpoint at step 1: No space left on device"
    ) as warned:
        run = session.run(COUNT, 6, numbers_to(64), every=1)
    assert run.done == 6
    assert len(warned) == 1


def test_all_variables_that_the_cell_reaches_are_saved(tmp_path: Path) -> None:
    """Variables may be in lists, in objects, and behind functions of the notebook."""
    code = """
class Trainer:
    def __init__(self, variable):
        self.inner = {"v": [variable]}
    def step(self, batch):
        self.inner["v"][0].assign_add(tf.reduce_mean(batch))
        later.assign_add(1.0)
def made(variable):
    def step():
        variable.assign_add(1.0)
    return step
"""

    def session() -> tuple[Session, list[Any]]:
        session = Session(tmp_path)
        mean = tf.VariableAggregation.MEAN
        with session.book.strategy.scope():
            in_object, later, closed = (tf.Variable(0.0, aggregation=mean) for _ in range(3))
        session.book.plain(code)
        names = session.book.names
        names |= {
            "later": later,
            "trainer": names["Trainer"](in_object),
            "step": names["made"](closed),
        }
        return session, [in_object, later, closed]

    cell = "trainer.step(batch)\nstep()"
    session()[0].run(cell, 3, numbers_to(64))
    resumed, variables = session()
    resumed.run(cell, 4, numbers_to(64))
    assert [float(v.numpy()) for v in variables] == [sum(range(32)) / 8, 4.0, 4.0]


def test_other_tensorflow_programs_can_read_checkpoints(tmp_path: Path) -> None:
    first = Session(tmp_path).with_model()
    first.run(TRAIN, 2, data())
    model = Session(None).with_model().book.names["model"]
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.restore(tf.train.latest_checkpoint(str(tmp_path))).expect_partial()
    expected = first.book.names["model"].layers[0].kernel
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), expected.numpy())


def test_a_function(tmp_path: Path) -> None:
    """A function's step has a variable in its closure; another function's checkpoint is refused."""

    def functions(session: Session) -> tuple[Any, Any]:
        count = session.count

        def step(batch: Any) -> Any:
            count.assign_add(tf.reduce_mean(batch))
            return {"mean": tf.reduce_mean(batch)}

        def other(batch: Any) -> Any:
            count.assign_sub(tf.reduce_mean(batch))
            return {"mean": tf.reduce_mean(batch)}

        return step, other

    def go(session: Session, function: Any, steps: int) -> Steps:
        settings = RunSettings(
            data=numbers_to(64),
            steps=steps,
            plot=("mean",),
            checkpoint=CheckpointSettings(str(tmp_path)),
        )
        run = session.book.runner.steps(function, settings=settings)
        run.watcher = session
        run.go()
        return run

    first, resumed = Session(tmp_path), Session(tmp_path)
    go(first, functions(first)[0], 3)
    run = go(resumed, functions(resumed)[0], 5)
    assert resumed.count.numpy() == sum(range(40)) / 8
    assert run.history.steps("mean").tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(CellError, match="is of another cell"):
        go(resumed, functions(resumed)[1], 6)


def test_on_another_number_of_replicas(tmp_path: Path) -> None:
    Session(tmp_path).run(COUNT, 3, numbers_to(64))
    other = Session(tmp_path, "one")
    assert strategy_of("one").num_replicas_in_sync == 1
    other.run(COUNT, 4, numbers_to(64))
    assert other.count.numpy() == sum(range(32)) / 8


def test_steps_without_data(tmp_path: Path) -> None:
    cell = "count.assign_add(1.0)\nx = x + 1.0"
    for total in (3, 7):
        session = Session(tmp_path)
        session.book.names["x"] = tf.constant(0.0)
        session.run(cell, total, None, every=2)
    assert session.count.numpy() == 7
    assert session.book.each(session.book.names["x"]) == [7.0, 7.0]


class Slotted:
    __slots__ = ("weights",)

    def __init__(self, weights: Any) -> None:
        self.weights = weights


def test_variables_in_objects_and_functions_have_the_names_of_their_places() -> None:
    """A checkpoint finds them by these names."""
    inner, listed, slotted = (tf.Variable(0.0) for _ in range(3))

    def step(given: Any = inner) -> Any:
        return given + inner

    @functools.wraps(step)
    def wrapping() -> Any:
        return step()

    values = {"step": step, "state": {"w": [listed]}, "slots": Slotted(slotted)}
    found = owners_of(values, {})
    assert found.keys() == {"step.inner", "state.w.0", "slots.weights"}
    assert found["state.w.0"] is listed
    assert owners_of({"wrapping": wrapping}, {}).keys() == {"wrapping.step.inner"}
