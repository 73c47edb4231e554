"""Collectives under a condition on which replicas disagree: a TPU hangs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.rules import check
from support.strategies import all_reduce, each, make, replica_id, run, strategy_of

from tpunb.tensorflow.virtual.graph import replica_constants
from tpunb.tensorflow.virtual.private_names import tpu_ops
from tpunb.tensorflow.virtual.strict.collective_branches import ADVICE, RULE

X = tf.TensorSpec([2])
GROUPS = [[0, 1], [2, 3]]


def summed_if(condition: Any, x: Any) -> Any:
    return tf.cond(condition, lambda: all_reduce(x), lambda: x)


def in_a_loop(iterations: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        return tf.while_loop(
            lambda i, _: i < iterations(), lambda i, x: (i + 1, function(x)), (0, x)
        )

    return step


def of_groups(x: Any) -> Any:
    def summed() -> Any:
        return tpu_ops.cross_replica_sum(x, GROUPS)

    return tf.cond(replica_id() < 2, summed, lambda: 2.0 * summed())


HANGS: dict[str, Callable[[Any], Any]] = {
    "a branch": lambda x: summed_if(replica_id() == 0, x),
    "a branch on odd replicas": lambda x: summed_if(replica_id() % 2 == 1, x),
    "a switch": lambda x: tf.switch_case(replica_id(), [lambda: x, lambda: all_reduce(x)]),
    "a branch in a branch": lambda x: tf.cond(
        replica_id() >= 0, lambda: summed_if(replica_id() == 3, x), lambda: x
    ),
    "a branch in a loop": in_a_loop(lambda: 2, lambda x: summed_if(replica_id() == 0, x)),
    "a loop without iterations on one replica": in_a_loop(replica_id, all_reduce),
    "a loop with more iterations on one replica": in_a_loop(lambda: replica_id() + 5, all_reduce),
    "an all-gather": lambda x: tf.cond(
        replica_id() == 0,
        lambda: tf.distribute.get_replica_context().all_gather(x, axis=0)[:2],
        lambda: x,
    ),
    "a mean of a gradient": lambda x: summed_if(
        tf.cast(replica_id(), tf.float32) * 2.0 + 1.0 > 3.0, x
    ),
}
MAY_HANG: dict[str, Callable[[Any], Any]] = {
    "data": lambda x: summed_if(tf.reduce_sum(x) > 0.0, x),
    "data in an inner branch": lambda x: tf.cond(
        replica_id() == 0, lambda: summed_if(tf.reduce_sum(x) > 0.0, x), lambda: x
    ),
    "data in an outer branch": lambda x: tf.cond(
        tf.reduce_sum(x) > 0.0, lambda: summed_if(replica_id() == 0, x), lambda: x
    ),
    "a branch that no replica takes": lambda x: tf.switch_case(
        replica_id(), [lambda: x] * 4 + [lambda: all_reduce(x)]
    ),
    "groups that agree": of_groups,
}
FINE: dict[str, Callable[[Any], Any]] = {
    "no branch": all_reduce,
    "a branch without a collective": lambda x: tf.cond(
        replica_id() == 0, lambda: 2.0 * x, lambda: x
    ),
    "a branch that all replicas take": lambda x: summed_if(replica_id() < 4, x),
    "a branch that no replica takes": lambda x: tf.cond(
        replica_id() < 0, lambda: summed_if(replica_id() == 0, x), lambda: x
    ),
    "an index beyond the last branch": lambda x: tf.switch_case(
        replica_id() + 1, [lambda: x, lambda: all_reduce(x)]
    ),
    "a loop that counts from another number": lambda x: tf.while_loop(
        lambda i, _: i < replica_id() + 3, lambda i, x: (i + 1, all_reduce(x)), (replica_id(), x)
    ),
    "a condition on a sum": lambda x: summed_if(all_reduce(tf.reduce_sum(x)) > 0.0, x),
    "a loop": in_a_loop(lambda: 3, all_reduce),
    "a loop without iterations": in_a_loop(lambda: 0, lambda x: summed_if(replica_id() == 0, x)),
}


@pytest.fixture(scope="module")
def four() -> Any:
    return strategy_of(4)


@pytest.mark.parametrize("name", HANGS)
def test_replicas_that_disagree(four: Any, name: str) -> None:
    report = check(HANGS[name], X, strategy=four)
    assert not report.ok
    assert [problem.code for problem in report.errors] == [RULE]
    assert not report.warnings
    assert report.headline == "Hangs on a TPU: 1 error."
    assert report.errors[0].line is not None


@pytest.mark.parametrize("name", MAY_HANG)
def test_replicas_that_may_disagree(four: Any, name: str) -> None:
    report = check(MAY_HANG[name], X, strategy=four)
    assert report.ok
    assert [problem.code for problem in report.warnings] == [ADVICE]


@pytest.mark.parametrize("name", FINE)
def test_replicas_that_agree(four: Any, name: str) -> None:
    assert check(FINE[name], X, strategy=four).headline == "Compiles for a TPU."


def test_a_variable_that_is_equal_on_every_replica(four: Any) -> None:
    steps, on_read = (
        make(four, 0),
        make(four, 0, synchronization=tf.VariableSynchronization.ON_READ),
    )
    assert not check(lambda x: summed_if(steps % 2 == 0, x), X, strategy=four).warnings
    assert check(lambda x: summed_if(on_read % 2 == 0, x), X, strategy=four).warnings


def test_a_single_replica_never_waits() -> None:
    alone = strategy_of(1)
    assert not check(HANGS["a branch"], X, strategy=alone).errors
    assert not check(MAY_HANG["data"], X, strategy=alone).warnings


def test_a_step_is_refused_before_it_runs(four: Any) -> None:
    values = each(four, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="the replicas wait") as refused:
        run(four, HANGS["a branch"], values)
    assert refused.value.code == RULE
    assert "true on replica 0 and false on replica 1" in str(refused.value)
    # Without the rule, the engine refuses the step when the replicas disagree.
    lenient = strategy_of(4, strict={RULE: False})
    values = each(lenient, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="disagree about a condition"):
        run(lenient, HANGS["a branch"], values)


def test_all_turns_and_replicas_share_a_graph(four: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    build = replica_constants.function_def_to_graph_def
    monkeypatch.setattr(
        replica_constants,
        "function_def_to_graph_def",
        lambda function: built.append(function) or build(function),
    )
    graphs = []
    for turns in 2, 40:
        loop = in_a_loop(functools.partial(lambda n: 0 * replica_id() + n, turns), all_reduce)
        assert check(loop, X, strategy=four).headline == "Compiles for a TPU."
        graphs.append(len(built))
        built.clear()
    assert graphs[0] == graphs[1] > 0


def test_the_fix_works(four: Any) -> None:
    def step(x: Any) -> Any:
        return all_reduce(tf.where(replica_id() == 0, x, 0.0))

    assert check(step, tf.TensorSpec([]), strategy=four).ok
    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [1.0] * 4
