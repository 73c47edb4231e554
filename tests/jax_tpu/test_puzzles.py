"""Puzzles in JAX: the solutions get all points, and wrong, wasteful and cheating answers get none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P
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

from tpunb._util.plain_data import packed
from tpunb.puzzles import check
from tpunb.teach.puzzles import scores
from tpunb.teach.puzzles.framework import AnswerError
from tpunb.teach.puzzles.grading import find_puzzle, graded, judged
from tpunb.teach.puzzles.jax_programs import JaxOnEachCore
from tpunb.teach.puzzles.jax_puzzles import PUZZLES

RECORDED_WITH = "0.10.2"
"""The release of JAX whose programs `notebooks/puzzles/recorded` knows."""

NAMES = [puzzle.name for puzzle in PUZZLES]


@pytest.fixture(autouse=True)
def _virtual_tpu(connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUNB_RECORDED", raising=False)
    connect()


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Any, ...]]:
    return answers_in("jax_puzzles.ipynb")


def test_the_notebook_has_an_answer_to_each_puzzle(answers: dict[str, Any]) -> None:
    assert list(answers) == NAMES


def test_the_solutions_are_the_best_known() -> None:
    check_saved_reports("jax_puzzles.ipynb", NAMES)


def test_a_solution_is_the_best_known(answers: dict[str, tuple[Any, ...]], libtpu: None) -> None:
    report = check("neighbours", *answers["neighbours"])
    report.raise_if_unsolved()
    assert report.score == 100


def all_rows(x: Any) -> Any:
    return lax.all_gather(x, "core", tiled=True)


def two_passes(x: Any) -> Any:
    mean = lax.pmean(x.mean(0), "core")
    return lax.pmean(((x - mean) ** 2).mean(0), "core")


def gathered_neighbours(x: Any) -> Any:
    rows = jnp.pad(all_rows(x), ((1, 1), (0, 0)))
    smooth = (rows[:-2] + rows[1:-1] + rows[2:]) / 3
    return lax.dynamic_slice_in_dim(smooth, lax.axis_index("core") * len(x), len(x))


def on_the_host(x: Any) -> Any:
    result = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return lax.pmean(jax.pure_callback(lambda rows: np.asarray(rows).mean(0), result, x), "core")


def small_on_a_tpu(x: Any) -> Any:
    mean = lax.platform_dependent(x, cpu=lambda x: x.mean(0), tpu=lambda x: x[0])
    return lax.pmean(mean, "core")


def summed_and_cut(x: Any, w: Any) -> Any:
    whole = lax.psum(x @ w, "core")
    rows = len(whole) // 8
    return lax.dynamic_slice_in_dim(whole, lax.axis_index("core") * rows, rows)


def plain_loss(x: Any, w: Any, words: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ w), words[:, None], 1)[:, 0]


def own_states(losses: Any) -> Any:
    return lax.dynamic_slice_in_dim(losses, lax.axis_index("core") * 128, 128)


def largest_logit(x: Any, w: Any, words: Any) -> Any:
    """A number near the logarithm of the sum, whose mean over the states is right to 0.1%."""
    logits = x @ w
    own = words - lax.axis_index("core") * w.shape[1]
    here = (own >= 0) & (own < w.shape[1])
    right = jnp.take_along_axis(logits, jnp.where(here, own, 0)[:, None], 1)[:, 0]
    largest = lax.pmax(logits.max(1), "core")
    return own_states(largest - lax.psum(jnp.where(here, right, 0), "core"))


def largest_instead_of_sum(x: Any, w: Any, words: Any) -> Any:
    logits = x @ w
    return logits.max(1) - jnp.take_along_axis(logits, words[:, None], 1)[:, 0]


def in_bfloat16(x: Any) -> Any:
    return lax.pmean(x.mean(0).astype("bfloat16"), "core").astype("float32")


def in_another_order_each_time() -> Any:
    calls: list[int] = []

    def pack(points: Any) -> Any:
        calls.append(1)
        return points[:: (-1) ** len(calls)]

    return pack


class Anything:
    """An object that equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def work_in_open_loop(x: Any) -> Any:
    """Send all rows in a loop whose length depends on data, so that the compiler counts one."""

    def more(state: Any) -> Any:
        return state[0] < 8 + 0 * x[0, 0]

    def step(state: Any) -> Any:
        k, total = state
        part = lax.dynamic_slice_in_dim(x, (1024 * k).astype(int), 1024)
        return k + 1, total + lax.psum(part.mean(0), "core") / 64

    return lax.pmean(lax.while_loop(more, step, (0 * x[0, 0], 0 * x[0]))[1], "core")


def momentum_step(weights: Any, momentum: Any, gradients: Any) -> Any:
    momentum = 0.9 * momentum + gradients
    return weights - 0.1 * momentum, momentum


def multiply_add(x_ref: Any, y_ref: Any, result_ref: Any) -> None:
    result_ref[...] = x_ref[...] * y_ref[...] + 1


def in_blocks(*sizes: int) -> Any:
    def call(x: Any, y: Any) -> Any:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        if not sizes:
            return pl.pallas_call(multiply_add, out_shape=result)(x, y)
        block = pl.BlockSpec(sizes, lambda i, j: (i, j))
        grid = tuple(size // part for size, part in zip(x.shape, sizes, strict=True))
        return pl.pallas_call(
            multiply_add, grid=grid, in_specs=[block, block], out_specs=block, out_shape=result
        )(x, y)

    return call


def beside_a_kernel(x: Any, y: Any) -> Any:
    part = in_blocks(8, 128)(x[:8, :128], y[:8, :128])
    return (x * y + 1).at[:8, :128].set(part)


def without_its_kernel(x: Any, y: Any) -> Any:
    in_blocks(128, 256)(x, y)
    return x * y + 1


def in_half_numbers(x: Any, w: Any) -> Any:
    return summed_and_cut(x.astype("bfloat16"), w.astype("bfloat16")).astype("float32")


REFUSED: list[Case] = [
    ("mean", (unanswered,), "There is no answer yet"),
    ("mean", (lambda x: lax.psum(x.mean(0), "core"),), "8 times the right one"),
    ("mean", (lambda x: lax.pmean(x.mean(0), "core") / 8,), "divided by 8 once too often"),
    ("mean", (lambda x: x.mean(0),), "has to return the same result"),
    ("mean", (lambda x: jnp.zeros(256),), "does not depend on `x`"),
    ("mean", (lambda x: lax.pmean(x[0], "core"),), "is wrong in"),
    ("mean", (lambda x: lax.pmean(x.mean(), "core"),), "has the shape ()"),
    ("mean", (lambda x: lax.pmean(x.mean(0), "replica"),), 'one axis, "core"'),
    ("mean", (on_the_host,), "The host computes here"),
    ("mean", (small_on_a_tpu,), "is wrong in"),
    ("mean", (in_bfloat16,), "is wrong in"),
    ("mean", (jnp.zeros(256),), "Give `check` a function"),
    ("variance", (lambda x: lax.pmean(x.var(0), "core"),), "not the mean of the cores' variances"),
    (
        "neighbours",
        (lambda x: (jnp.roll(x, 1, 0) + x + jnp.roll(x, -1, 0)) / 3,),
        "one core's part",
    ),
    ("half", (lambda x, w: (x @ w)[:128],), "is wrong in"),
    ("vocabulary", (lambda x, w, words: own_states(plain_loss(x, w, words)),), "Core i has"),
    ("vocabulary", (largest_logit,), "Core i has"),
    ("ring", (lambda x, w: jnp.zeros((512, 2048)),), "does not depend on `x` and `w`"),
    ("shardings", (lambda: {"x": P(), "w1": P()},), "keys 'x', 'w1', 'w2'"),
    ("shardings", (lambda: {"x": Anything(), "w1": P(), "w2": P()},), "PartitionSpec, such as"),
    ("shardings", (lambda: {"x": None, "w1": P(), "w2": P()},), "PartitionSpec, such as P()"),
    ("padding", (lambda points: points[:8], lambda packed, _: packed), "loses numbers"),
    ("padding", (lambda points: points.T, lambda packed, _: packed), "is wrong in"),
    ("padding", (lambda points: 2 * points, lambda packed, r: packed @ r.T), "unchanged"),
    ("padding", (in_another_order_each_time(), lambda packed, r: packed @ r.T), "unchanged"),
    ("layers", (lambda weights, x: 0 * weights,), "is wrong in"),
    ("logits", (lambda x, w, words: plain_loss(x[:8], w, words[:8]),), "has the shape (8,)"),
    ("logits", (largest_instead_of_sum,), "is wrong in"),
    ("donation", (lambda: momentum_step,), "Return what jax.jit returns"),
    ("donation", (lambda: jax.jit(lambda w, m, g: (w, m), donate_argnums=(0, 1)),), "is wrong"),
    (
        "one_program",
        (lambda rows: rows, lambda w, rows: ((rows @ w) ** 2).mean()),
        "64 programs",
    ),
    ("one_program", (filled, lambda w, rows: ((rows[0] @ w) ** 2).mean()), "must not count"),
    ("half", (in_half_numbers,), "is wrong in"),
    ("kernel", (lambda x, y: x * y + 1,), "has to use pallas_call"),
    ("kernel", (beside_a_kernel,), "has to be in pallas_call"),
    ("kernel", (without_its_kernel,), "has to use pallas_call"),
]
"""Answers that compute something else, or not on the TPU, and a part of the report."""

WASTEFUL: list[Case] = [
    ("mean", (lambda x: lax.pmean(x, "core").mean(0),), "How many numbers are left to send"),
    ("variance", (two_passes,), "Which two sums"),
    ("neighbours", (gathered_neighbours,), "jax.lax.ppermute sends"),
    ("half", (summed_and_cut,), "only the first step"),
    ("shardings", (lambda: {"x": P(), "w1": P(), "w2": P()},), "needs 17.12 GiB"),
    ("padding", (lambda p: p.T, lambda p, r: r @ p), "An array with one axis"),
    ("donation", (lambda: jax.jit(momentum_step),), "nobody needs afterwards"),
    ("donation", (lambda: jax.jit(momentum_step, donate_argnums=0),), "nobody needs afterwards"),
    ("kernel", (in_blocks(),), "make the blocks smaller"),
    ("kernel", (in_blocks(16, 256),), "Make the blocks larger"),
]
"""Right answers whose programs cost too much, and a part of the report."""


test_a_wrong_answer_gets_no_points = no_points_for_wrong(REFUSED)
test_a_wasteful_answer_gets_no_points = no_points_for_wasteful(WASTEFUL)


def test_an_answer_between_limit_and_best_gets_a_part(libtpu: None) -> None:
    report = check("kernel", in_blocks(128, 256))
    assert report.solved
    assert 60 < report.score < 100
    assert "The best known solution: about 36 µs." in report.headline


def test_a_loop_of_unknown_length_is_not_graded(libtpu: None) -> None:
    report = check("mean", work_in_open_loop)
    assert report.right
    assert (report.solved, report.score, report.hints) == (False, 0, ())
    assert "length of a loop depends on data" in report.headline


def test_a_send_too_many_costs_points(answers: dict[str, tuple[Any, ...]], libtpu: None) -> None:
    def sends_again(x: Any, w: Any) -> Any:
        around = [(i, (i + 1) % 8) for i in range(8)]
        sent = lax.ppermute(lax.ppermute(w, "core", around), "core", [(j, i) for i, j in around])
        return answers["ring"][0](x, sent)

    assert check("ring", *answers["ring"]).score == 100
    assert check("ring", sends_again).score < 90


def test_the_same_answer_gets_the_same_grade() -> None:
    prepare, step = filled, lambda w, prepared: ((prepared[0] @ w) ** 2).sum() / prepared[1]
    half = lambda rows: (prepare(rows)[0].astype("float16"), prepare(rows)[1])  # noqa: E731
    puzzle = find_puzzle("one_program")
    problems = [graded(puzzle, (half, step)).problem for _ in range(3)]
    assert len(set(problems)) == 1


def test_an_answer_is_judged_without_its_code() -> None:
    """Another process, which never sees the function, comes to the same result."""
    right, wrong = (lambda x: lax.pmean(x.mean(0), "core")), (lambda x: lax.pmean(x[0], "core"))
    puzzle = find_puzzle("mean")
    data = [packed(puzzle.form.data(puzzle, (fn,))) for fn in (right, wrong)]
    code = (
        "import sys, json, tpunb\n"
        "tpu = tpunb.connect(simulate='v5e-8', framework='jax', judge='off')\n"
        "from tpunb.teach.puzzles.grading import find_puzzle, judged\n"
        "print([judged(find_puzzle('mean'), each).right for each in json.load(sys.stdin)])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(data), text=True, capture_output=True
    )
    assert said.stdout.splitlines()[-1] == "[True, False]", said.stderr


def test_other_arguments_than_the_puzzles_are_refused() -> None:
    """A program that was made by hand, whose arguments every core has as a whole."""
    puzzle = find_puzzle("mean")
    whole = JaxOnEachCore(parts=((),)).traced(lambda x: x.mean(0), puzzle.typical)
    assert "other arguments" in judged(puzzle, packed({"program": whole})).problem


def test_a_wrong_name_has_advice() -> None:
    with pytest.raises(AnswerError, match="neighbours"):
        check("neighbors", all_rows)


def test_without_the_compiler_the_report_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    report = check("mean", lambda x: lax.pmean(x.mean(0), "core"))
    assert not report.solved
    assert "the program is not judged" in report.headline
    assert not report.rows()


@pytest.mark.parametrize("name", ["mean", "shardings", "padding", "kernel"])
def test_recorded_verdicts_replace_the_compiler(
    name: str, answers: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if jax.__version__ != RECORDED_WITH:
        pytest.skip(f"the verdicts were recorded with JAX {RECORDED_WITH}")
    other = lambda x: lax.psum(x.mean(0), "core") / 8 + 0  # noqa: E731
    check_recorded(monkeypatch, name, answers[name], other)


def test_scores_keep_the_best_answer(libtpu: None) -> None:
    check("mean", lambda x: lax.pmean(x.mean(0), "core"))
    check("mean", lambda x: x)
    assert ("mean", "100") in scores().rows()
