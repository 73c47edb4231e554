"""The largest batch that fits, with few compilations."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.programs import FITS
from support.strategies import strategy_of, strategy_of_parts

from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.answers import Compiled, Refused
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.fit.batch_sizes import LargestBatch, SearchStopped, largest_batch
from tpunb.compiler.program import CompileError

pytestmark = pytest.mark.usefixtures("libtpu")

FITTING = Compiled(2**30, 2**29, 0, 0, 0, "", False)
REFUSED = Refused("Ran out of memory in memory space hbm. Used 33.00G of 15.75G hbm")


def doubled(x: Any) -> Any:
    return x * 2.0


def test_one_more_step_does_not_fit() -> None:
    messages: list[str] = []
    largest = largest_batch(
        doubled, tf.TensorSpec([None, 1024, 1024]), tpu="v5e-8", progress=messages.append
    )
    assert not isinstance(largest, tuple)
    # Each example has an argument and a result of 4 MiB; a core has 15.75 GiB.
    assert largest.per_replica == pytest.approx(15.75 * 1024 / 8, rel=0.02)
    assert largest.per_replica % 8 == 0
    assert largest.batch == largest.per_replica * 8 == largest.program.largest_batch
    sizes = {size: fits for size, _, fits in largest.tried}
    assert sizes[largest.per_replica]
    assert not sizes[largest.per_replica + 8]
    assert len(sizes) <= 8
    assert any("try 2: a batch of" in message for message in messages)


def test_not_even_one_example_fits() -> None:
    largest = largest_batch(doubled, tf.TensorSpec([8, 2**20, 1024]), tpu="v3-8")
    assert not isinstance(largest, tuple)
    assert largest.per_replica == largest.batch == 0
    assert not largest.program.ok
    assert "not even one" in str(largest)


def test_a_refused_program_has_no_largest_batch() -> None:
    with pytest.raises(CompileError, match="int64"):
        largest_batch(lambda x: x @ x, tf.TensorSpec([8, 8, 8], tf.int64), tpu="v3-8")
    with pytest.raises(CompileError, match="has a batch"):
        largest_batch(doubled, 1.0, tpu="v3-8")


def test_a_notebook_shows_the_batch_and_its_memory() -> None:
    largest = LargestBatch("v3-8", 1600, 12800, FITS, ((1600, 10**9, True),))
    assert str(largest) == (
        "v3-8: 12,800 examples, 1600 a replica. A round batch is 12,288. Next: batch(12288) in "
        "your dataset."
    )
    bundle = largest._repr_mimebundle_()
    assert bundle["text/plain"].startswith(str(largest))
    assert "HBM" in bundle["text/plain"]
    assert "<div" in bundle["text/html"]


@pytest.mark.parametrize(
    ("per_replica", "round_batch"), [(0, 0), (5, 32), (128, 1024), (200, 1024), (1992, 15360)]
)
def test_a_round_batch_is_given_with_the_exact_batch(per_replica: int, round_batch: int) -> None:
    assert LargestBatch("v5e-8", per_replica, 8 * per_replica, FITS, ()).round == round_batch


def test_a_smaller_batch_that_fits_is_suggested() -> None:
    program = compile(doubled, tf.TensorSpec([4096, 1024, 1024]), tpu="v5e-8")
    assert not program.ok
    assert "32,768 fit on a v5e-32: 8 GiB a core." in program.errors[0].fix
    assert "A batch of 8192 (1024 a replica) fits: 8 GiB a core." in program.errors[0].fix


def test_a_larger_type_is_suggested_for_replicas_of_several_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smallest type of the family, v5e-1, has too few cores for a replica."""
    answers = itertools.chain([REFUSED], itertools.repeat(FITTING))
    monkeypatch.setattr(libtpu, "ask", lambda *_, **__: next(answers))
    strategy = strategy_of_parts(4, [1, 2, 1, 1], "v5e-8", strict=True, spmd=True)
    program = compile(doubled, tf.TensorSpec([4096, 128]), strategy=strategy)
    fix = program.errors[0].fix
    assert "A batch of 4096 (1024 a replica) fits: 1 GiB a core." in fix
    assert "16,384 fit on a v5e-32: 1 GiB a core." in fix


class Block(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Any, training: bool = False) -> Any:
        assert isinstance(training, bool)
        return keras.ops.sin(keras.ops.sin(x @ self.kernel) @ self.kernel)


def test_recomputing_a_models_blocks_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    sines: list[int] = []

    def ask(prepared: Prepared, *_: Any, **__: Any) -> Compiled | Refused:
        sines.append(prepared.module.count(b"sine"))
        if sines[-1] > sines[0]:
            return FITTING
        return REFUSED

    monkeypatch.setattr(libtpu, "ask", ask)
    with strategy_of("v5e-8").scope():
        layers = [keras.Sequential([Block()], name=f"block_{number}") for number in range(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("sgd", "mse")
    batch = tf.TensorSpec([64, 8])
    fix = compile(model, batch, batch, tpu="v5e-8").errors[0].fix
    assert fix.startswith(
        "The same batch fits if keras.remat computes block_0, …, block_3 again for the gradient: "
        "1 GiB a core."
    )
    sines.clear()
    assert "keras.remat" not in compile(model.predict, batch, tpu="v5e-8").errors[0].fix


def test_models_that_share_blocks_are_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libtpu, "ask", lambda *_, **__: REFUSED)
    blocks = [keras.Sequential([Block()], name=f"block_{number}") for number in range(4)]
    first = keras.Sequential([keras.Input((8,)), *blocks[:3]])
    second = keras.Sequential([keras.Input((8,)), *blocks[1:]])
    program = compile(lambda x: second(first(x)), tf.TensorSpec([64, 8]), tpu="v5e-8")
    assert not program.ok
    assert not any("call" in vars(block) for block in blocks)


def interrupted_at(tries: int) -> Any:
    """Return a stand-in for libtpu in which every other program fits, up to an interrupt."""
    answers = itertools.cycle([FITTING, REFUSED])
    asked = itertools.count(1)

    def ask(*_: Any, **__: Any) -> Compiled | Refused:
        if next(asked) == tries:
            raise KeyboardInterrupt
        return next(answers)

    return ask


def test_a_stopped_search_keeps_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libtpu, "ask", interrupted_at(3))
    said: list[str] = []
    with pytest.raises(SearchStopped, match="fits: 512; does not: 8064") as stopped:
        largest_batch(doubled, tf.TensorSpec([64, 8]), tpu="v5e-8", progress=said.append)
    (largest,) = stopped.value.batches
    assert (largest.per_replica, largest.batch, largest.program.ok) == (64, 512, True)
    assert list(stopped.value.programs) == [largest.program]
    note = (
        "A larger batch may fit: the search was stopped. What is known: fits: 512; does not: 8064."
    )
    assert note in str(largest)
    assert note in largest.program.notes
    assert any("(fits: 512; does not: 8064; at most 10 tries left)" in text for text in said)


def test_a_stop_before_anything_fits_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libtpu, "ask", interrupted_at(1))
    with pytest.raises(KeyboardInterrupt) as stopped:
        largest_batch(doubled, tf.TensorSpec([64, 8]), tpu="v5e-8")
    assert not isinstance(stopped.value, SearchStopped)


def test_a_quick_answer_is_a_power_of_two() -> None:
    exact, quick = (
        largest_batch(doubled, tf.TensorSpec([None, 1024, 1024]), tpu="v5e-8", quick=each)
        for each in (False, True)
    )
    assert isinstance(exact, LargestBatch)
    assert isinstance(quick, LargestBatch)
    assert quick.per_replica == 1024 < exact.per_replica < 2048
    assert len(quick.tried) < len(exact.tried)
    assert "the search was for the largest power of two" in str(quick)
    assert not exact.note
