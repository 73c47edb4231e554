"""Puzzles in TensorFlow: solutions get all points; wrong, wasteful and cheating answers get none."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.puzzle_answers import (
    Case,
    answers_in,
    check_recorded,
    check_saved_reports,
    filled,
    no_points_for_wasteful,
    no_points_for_wrong,
    unanswered,
)

import tpunb
from tpunb.teach.puzzles.tensorflow_programs import TensorFlow
from tpunb.teach.puzzles.tensorflow_puzzles import PUZZLES

NAMES = [puzzle.name for puzzle in PUZZLES]


@pytest.fixture(scope="module", autouse=True)
def _virtual_tpu() -> Iterator[None]:
    with tpunb.connect(simulate="v5e-8"):
        yield


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, tuple[Any, ...]]]:
    yield answers_in("tensorflow_puzzles.ipynb")
    assert os.environ.get("TPUNB_RECORDED") is None


def test_the_solutions_are_the_best_known(answers: dict[str, Any]) -> None:
    assert list(answers) == NAMES
    check_saved_reports("tensorflow_puzzles.ipynb", NAMES)


def test_a_loop_runs_when_the_graph_that_it_was_traced_in_is_gone() -> None:
    def summed(w: Any, x: Any) -> Any:
        return tf.foldl(lambda total, rows: total + rows @ w, x, tf.zeros([4, 4]))

    args = [np.ones((4, 4), "float32"), np.ones((3, 4, 4), "float32")]
    framework = TensorFlow()
    traced = framework.traced(summed, args)
    gc.collect()
    for _ in range(2):
        run = framework.runner(traced, args)
        gc.collect()
        np.testing.assert_array_equal(run(*args)[0], np.full((4, 4), 12.0))


def all_reduce(operation: str, value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(operation, value)


def two_passes(x: Any) -> Any:
    mean = all_reduce("mean", tf.reduce_mean(x, 0))
    return all_reduce("mean", tf.reduce_mean((x - mean) ** 2, 0))


def whole_gradient(x: Any, errors: Any) -> Any:
    return all_reduce("mean", tf.matmul(x, errors, transpose_a=True) / len(x))


def on_the_host(x: Any, w: Any, words: Any) -> Any:
    return tf.py_function(lambda *_: tf.constant(0.0), [x, w, words], tf.float32)


def right_at_the_second_trace() -> Any:
    traces: list[int] = []

    def mean(x: Any) -> Any:
        traces.append(1)
        return all_reduce("mean", tf.reduce_mean(x, 0) if len(traces) > 1 else x[0])

    return mean


def mean_square(w: Any, rows: Any) -> Any:
    return tf.reduce_mean(tf.linalg.matvec(rows, w) ** 2)


REFUSED: list[Case] = [
    ("mean", (unanswered,), "There is no answer yet"),
    ("mean", (lambda x: tf.reduce_mean(x, 0),), "The replicas return different results"),
    ("mean", (lambda x: all_reduce("sum", tf.reduce_mean(x, 0)),), "8 times the right one"),
    ("mean", (lambda x: tf.zeros(256),), "does not depend on `x`"),
    ("mean", (lambda x: all_reduce("mean", tf.reduce_mean(x)),), "has the shape ()"),
    ("variance", (lambda x: all_reduce("mean", tf.math.reduce_variance(x, 0)),), "replicas' varia"),
    ("gradient", (lambda x, errors: all_reduce("sum", tf.matmul(x, errors, True)),), "4096 times"),
    ("padding", (lambda points: points[:9], lambda packed, _: packed), "loses numbers"),
    ("padding", (lambda points: points, lambda packed, _: packed), "is wrong in"),
    ("layers", (lambda weights, x: tf.zeros_like(weights),), "is wrong in"),
    ("logits", (on_the_host,), "The host computes here"),
    ("one_program", (lambda rows: rows, mean_square), "64 programs"),
    ("mean", (right_at_the_second_trace(),), "is wrong in"),
    ("one_program", (filled, lambda w, rows: mean_square(w, rows[0])), "must not count"),
]
"""Answers that compute something else, or not on the TPU, and a part of the report."""

WASTEFUL: list[Case] = [
    ("variance", (two_passes,), "Which two sums"),
    ("gradient", (whole_gradient,), "bfloat16"),
    ("padding", (lambda p: p, lambda p, r: tf.matmul(p, r, transpose_b=True)), "with one axis"),
]
"""Right answers whose programs cost too much, and a part of the report."""


test_a_wrong_answer_gets_no_points = no_points_for_wrong(REFUSED)
test_a_wasteful_answer_gets_no_points = no_points_for_wasteful(WASTEFUL)


@pytest.mark.parametrize("name", ["variance", "padding"])
def test_recorded_verdicts_replace_the_compiler(
    name: str, answers: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lambda x: all_reduce("sum", tf.reduce_mean(x, 0)) / 8 + 0  # noqa: E731
    check_recorded(monkeypatch, name, answers[name], other)
