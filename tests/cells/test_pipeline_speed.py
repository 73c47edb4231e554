"""`tpunb.input_speed`: its measurements, comparisons and trials, on a machine of any speed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.compiler.program import TpuProgram, TpuPrograms, remember_program
from tpunb.errors import CellError
from tpunb.machine.resources import Memory
from tpunb.tensorflow.cells.pipeline import changes as pipeline_changes
from tpunb.tensorflow.cells.pipeline import reading as pipeline_reading
from tpunb.tensorflow.cells.pipeline import speed as measuring
from tpunb.tensorflow.cells.pipeline.changes import changes
from tpunb.tensorflow.cells.pipeline.reading import Measured, read, repeated, size_of
from tpunb.tensorflow.cells.pipeline.speed import MeasuringStopped, input_speed, needs
from tpunb.tensorflow.checks.input_pipeline import Pipeline
from tpunb.tpu.compiled_program import StepTime
from tpunb.training.input_speed import Change, InputSpeed, Stage, latest_input_speed

SECONDS = 0.02
"""Too short for good measurements: the tests look at the reads and the trials."""

PROGRAM = TpuProgram("v5e-8", 8, examples=1024, time=StepTime(0.002, 0.004))


def light(x: Any) -> Any:
    return x + 1


def numbers(count: int = 64) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def quiet(_: str) -> None:
    """Shows nothing."""


def speed_of(dataset: Any, program: Any = PROGRAM) -> InputSpeed:
    return input_speed(dataset, program, seconds=SECONDS, progress=quiet)


class Counted:
    """An endless source of batches, with a clock that advances half a second for each batch."""

    def __init__(self) -> None:
        self.count = 0

    def monotonic(self) -> float:
        return 0.5 * self.count

    def __iter__(self) -> Iterator[Any]:
        batch = np.zeros([16, 2])
        while True:
            self.count += 1
            yield batch


def test_a_speed_is_elements_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counted()
    monkeypatch.setattr(pipeline_reading, "time", source)
    measured = read(lambda: iter(source), 1.0)
    assert measured.elements_per_second == pytest.approx(2.0)
    assert measured.examples_per_second == pytest.approx(32.0)


@pytest.mark.parametrize(
    ("element", "size"),
    [
        (lambda: (np.zeros([8, 3]), np.zeros([8])), 8),
        (lambda: {"x": tf.zeros([5])}, 5),
        (lambda: tf.ragged.constant([[1], [2, 3], []]), 3),
        (lambda: tf.sparse.from_dense([[1, 0], [0, 1]]), 2),
        (lambda: tf.constant(1.0), 1),
        (lambda: 3, 1),
    ],
)
def test_a_batch_has_as_many_examples_as_its_first_part(element: Any, size: int) -> None:
    assert size_of(element()) == size


def test_datasets_of_batches_and_of_examples() -> None:
    batches = speed_of(numbers().batch(16, drop_remainder=True))
    ratio = batches.examples_per_second / batches.elements_per_second
    assert ratio == pytest.approx(16)
    images = speed_of(tf.data.Dataset.from_tensors(np.zeros([4, 4, 3])).repeat())
    assert images.examples_per_second == pytest.approx(images.elements_per_second)


def test_the_whole_report() -> None:
    speed = speed_of(numbers().map(light).batch(16))
    assert "processor" in speed.processors
    assert "A v5e-8 consumes 256,000 to 512,000: this input would keep it busy" in speed.headline
    assert {stage.name for stage in speed.stages} == {"map(light)", "batch", "range"}
    assert sum(stage.share for stage in speed.stages) == pytest.approx(1.0)
    tried = {change.code for change in speed.changes if change.gain is not None}
    assert tried == {
        ".map(light, num_parallel_calls=tf.data.AUTOTUNE)",
        ".cache()",
        ".prefetch(tf.data.AUTOTUNE)",
    }
    assert latest_input_speed() is speed
    assert str(speed).endswith("than this machine: measure there too.")


def test_the_last_compiled_program_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_program(TpuPrograms([PROGRAM, TpuProgram("v3-8", 8, examples=1024)]))
    assert [need.tpu for need in speed_of(numbers().batch(4), None).needs] == ["v5e-8"]
    remember_program(TpuProgram("v3-8", 8))
    bare = speed_of(numbers().batch(4), None)
    assert bare.needs == ()
    assert "compile the step first" in bare.notes[0]


def test_hosts_share_the_examples_of_a_tpu() -> None:
    program = TpuProgram("v3-32", 32, examples=4096, time=StepTime(0.5, 1.0))
    (need,) = needs(program)
    assert (need.hosts, need.low, need.high) == (4, 1024.0, 2048.0)


def codes(dataset: tf.data.Dataset, speed: Measured | None = None) -> dict[str, Change]:
    possible = changes(dataset, Pipeline(dataset), speed or Measured(100, 100, 1.0), (), SECONDS)
    return {change.code: change for change in possible}


def test_only_missing_optimizations_are_tried() -> None:
    parallel = numbers().map(light, num_parallel_calls=2).cache().batch(4).prefetch(2)
    assert list(codes(parallel)) == ["options.deterministic = False; ds = ds.with_options(options)"]
    options = tf.data.Options()
    options.deterministic = False
    assert codes(parallel.with_options(options)) == {}
    assert ".cache()" not in codes(numbers().repeat())
    assert list(codes(numbers().batch(2))) == [".cache()", ".prefetch(tf.data.AUTOTUNE)"]


def test_a_cache_that_does_not_fit_in_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_changes, "measure", lambda: Memory(2**30, 2**20, None))
    dataset = tf.data.Dataset.from_tensors(tf.zeros([2**18])).repeat(8)  # 8 MiB
    change = codes(dataset)[".cache()"]
    assert change.gain is None
    assert "8 MiB, and 1 MiB of memory is free" in change.note
    assert codes(dataset.take(1).map(light))[".cache()"].gain is None
    small = tf.data.Dataset.from_tensors(tf.zeros([2**10])).repeat(8)
    assert codes(small)[".cache()"].gain is not None


def test_a_gain_from_noise_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([30.0, 12.0, 10.0])  # changed, changed again, and the original pipeline

    def measured(start: Callable[[], Any], seconds: float, **_: Any) -> Measured:
        return Measured(int(next(speeds)), 1, 1.0)

    monkeypatch.setattr(pipeline_changes, "read", measured)
    trials = pipeline_changes._Trials(
        numbers(), Pipeline(numbers()), Measured(10, 10, 1.0), SECONDS
    )
    assert trials.gain(numbers()) == pytest.approx(1.2)
    speeds = iter([9.0])
    assert trials.gain(numbers()) == pytest.approx(0.9)


def test_changes_of_the_users_code_are_suggested_and_not_tried() -> None:
    def decode(x: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.encode_jpeg(tf.zeros([16, 16, 3], tf.uint8)))
        return tf.image.resize(image, [4, 4]) + tf.cast(x, tf.float32)

    def python(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.int64), [])

    generated = tf.data.Dataset.from_generator(
        lambda: iter(range(100)), output_signature=tf.TensorSpec([], tf.int64)
    )
    pipeline = Pipeline(generated.map(python).map(decode).batch(2).prefetch(2))
    codes = [change.code for change in pipeline_changes.untried(pipeline, ())]
    decoding, calling, generating = codes
    assert decoding == "tf.io.decode_jpeg(image, ratio=2)"
    assert calling == "python without tf.py_function or tf.numpy_function"
    assert generating == "files or arrays instead of from_generator"

    def said(**shares: float) -> list[str]:
        names = {"generator": "from_generator", "decode": "map(decode)", "python": "map(python)"}
        stages = [Stage(names[name], 1.0, 1, share) for name, share in shares.items()]
        return [change.code for change in pipeline_changes.untried(pipeline, stages)]

    assert said(decode=0.9, python=0.05) == [".batch(n).map(decode)", decoding]
    assert said(generator=0.8, python=0.15, decode=0.05) == [calling, generating]


class Batches:
    """A sequence of batches, like a `keras.utils.PyDataset`."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Any:
        return np.zeros([4, 2]), np.zeros([4])


@pytest.mark.parametrize("source", [Batches(), [np.zeros([4, 2])] * 3], ids=["sequence", "list"])
def test_other_iterables_are_measured_without_stages(source: Any) -> None:
    speed = speed_of(source)
    assert speed.examples_per_second / speed.elements_per_second == pytest.approx(4)
    assert speed.stages == speed.changes == ()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (iter([1]), "cannot be read from its start again"),
        (lambda context: None, "cannot be read from its start again"),
        ((np.zeros([4]), np.zeros([4])), "Arrays are in memory"),
        (3, "cannot be read"),
    ],
)
def test_other_objects_are_refused(source: Any, says: str) -> None:
    with pytest.raises(CellError, match=says):
        repeated(source)


@pytest.mark.parametrize("source", [lambda: numbers(0), list], ids=["dataset", "list"])
def test_an_empty_input_is_refused(source: Any) -> None:
    with pytest.raises(CellError, match="too few elements"):
        speed_of(source())


def test_an_error_of_the_pipeline_is_raised() -> None:
    def failing_map(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(0, tf.int64))]):
            return tf.identity(x)

    with pytest.raises(tf.errors.InvalidArgumentError):
        speed_of(numbers().map(failing_map))


def test_an_interrupt_before_the_first_result_is_an_ordinary_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "read", stopped)
    with pytest.raises(KeyboardInterrupt) as error:
        speed_of(numbers())
    assert not isinstance(error.value, MeasuringStopped)


def test_an_interrupt_keeps_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> Iterator[Change]:
        yield Change("first", 2.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "changes", stopped)
    with pytest.raises(
        MeasuringStopped, match="before all changes of the input were tried"
    ) as stopped_error:
        speed_of(numbers().batch(4))
    assert stopped_error.value.speed.changes == (Change("first", 2.0),)
    assert latest_input_speed() is stopped_error.value.speed


def test_a_hanging_element_does_not_delay_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipeline waits in a separate thread."""
    never = threading.Event()

    class Hanging:
        def __iter__(self) -> Iterator[Any]:
            never.wait()
            yield from ()

    def interrupted(self: Any, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    begun = pipeline_reading._Reading(lambda: iter(Hanging()), batched=False)
    monkeypatch.setattr(begun.ended, "wait", lambda timeout: interrupted(begun, timeout))
    try:
        with pytest.raises(KeyboardInterrupt):
            begun.wait(lambda: False)
    finally:
        never.set()
