"""Random replica functions give the same results on the virtual TPU and in plain TensorFlow.

To try thousands more: `cd tests && python -m differential --seeds 0:2000`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from differential import engine, reference
from differential.compare import Finding, compare
from differential.generator import Program, generate
from differential.optimizer import differences
from differential.shrink import shrink
from support.tiers import thorough

UPDATE = """\
def first(x, y, s, i):
    v_1 = tf.tanh(y)
    if s > 0.0:
        v_2 = tf.sin(v_1)
    else:
        v_2 = v_1
    v0.assign_add(v_2)
    v_3 = all_reduce('sum', v0.read_value())
    return [v_3, v_2]
"""


FOUND = {
    # The optimizer anchors the tile's constants on the first branch.
    "a tensor stacked with itself in a branch": """\
def first(x, y, s, i):
    p = tf.ones_like(y)
    def one():
        return p
    def two():
        v_1 = all_reduce('mean', y)
        return p
    def three():
        return tf.reduce_mean(tf.stack([tf.ones_like(y), p]), 0)
    v_2 = tf.switch_case((i + 2) % 3, [one, two, three])
    def four():
        v0.assign_sub(y)
        return tf.sin(v_2)
    v_3 = tf.switch_case(replica_id() % 3, [lambda: y, lambda: tf.cos(v_2), four])
    return [y]
""",
    # The end of the function waits only for a sum that all replicas share.
    "an update before a sum that nobody reads": """\
def first(x, y, s, i):
    v_1 = tf.cond(s > 0.7, lambda: tf.cos(y), lambda: tf.sin(y))
    @nested
    def assigning(q):
        v0.assign(tf.sin(q))
        return q
    v_2 = assigning(v_1)
    @nested
    def summing(q):
        v_3 = all_reduce('sum', q)
        return q
    v_4 = summing(v_1)
    return [v_2]
""",
}


def program(source: str, replicas: int = 3) -> Program:
    rows = (2,) * replicas
    return Program(source, replicas, (("ON_WRITE", "NONE"),), rows, ("first", "first"))


# Some 45 seconds of one processor.
@pytest.mark.parametrize("seed", [*range(36), *thorough(range(100, 120))])
def test_a_random_program(seed: int) -> None:
    # AutoGraph makes a program three times slower, so convert only one in nine.
    assert compare(generate(seed, statements=3, autograph=seed % 9 == 4)) is None


@pytest.mark.parametrize("seed", [36, *thorough(range(37, 41))])
def test_a_random_program_on_one_replica(seed: int) -> None:
    random_program = generate(seed, statements=3, autograph=False)
    assert (
        compare(dataclasses.replace(random_program, replicas=1, rows=random_program.rows[:1]))
        is None
    )


@pytest.mark.parametrize("source", FOUND.values(), ids=FOUND)
def test_a_program_that_once_failed(source: str) -> None:
    assert compare(program(source)) is None


def test_a_seed_determines_a_program() -> None:
    assert generate(5) == generate(5)
    assert generate(5) != generate(6)


def test_a_wrong_number_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:

    def wrong(tried: Program, **_: Any) -> Any:
        results = reference.run(tried)
        if "assign_add" in tried.source:
            results[-1][0][0] += 1.0
        return results

    assert compare(program(UPDATE)) is None
    monkeypatch.setattr(engine, "run", wrong)
    finding = compare(program(UPDATE))
    assert finding is not None
    assert finding.kind == "numbers"
    assert "variable 0, copy 0" in finding.text
    small = shrink(finding, compare)
    source = "def first(x, y, s, i):\n    v0.assign_add(y)\n    return [y]\n"
    assert small.program == dataclasses.replace(program(source, 2), calls=("first",))
    assert source in str(small)


def test_rounding_differences_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = "    return [y, tf.argmax(bounded(tf.fill([3], s))), bounded(y)]\n"
    tied_program = program("def first(x, y, s, i):\n" + tied, 2)
    right = reference.run(tied_program)

    def other(_: Program, **__: Any) -> Any:
        return [[[y, 2 - at, z] for y, at, z in replicas] for replicas in right[:-1]] + right[-1:]

    monkeypatch.setattr(engine, "run", other)
    assert compare(tied_program) is None
    source = tied_program.source.replace("tf.argmax(bounded(tf.fill([3], s)))", "tf.argmax(y)")
    finding = compare(dataclasses.replace(tied_program, source=source))
    assert finding is not None
    assert "result 1 of call 0" in finding.text


def test_programs_that_fail_both_ways_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = program("def first(x, y, s, i):\n    return [tf.reshape(y, [2, 5])]\n")
    assert compare(broken) is None
    fine = program("def first(x, y, s, i):\n    return [y]\n", 2)

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(engine, "run", fails)
    finding = compare(fine)
    assert finding == Finding(fine, "only the virtual TPU fails, ValueError", "no such thing")
    other = dataclasses.replace(fine, source=broken.source)
    assert compare(other) is None


@pytest.mark.parametrize(
    ("varying", "special"),
    [(True, True), (False, False), *thorough([(True, False), (False, True)])],
)
def test_the_optimizer_changes_only_last_digits(special: bool, varying: bool) -> None:
    """`python -m differential --optimizer` tries more, and with oneDNN."""
    assert differences(special=special, varying=varying) == []
