"""Errors that users have reported, known and ordinary, as text."""

from __future__ import annotations

import pytest
from support.recorded_errors import (
    NO_TPU_IN_COLAB,
    ORDINARY,
    RECORDED,
    RETRACING,
    number,
)
from support.recorded_jax_errors import RECORDED_OF_JAX

from tpunb.errors.explain import explain


@pytest.mark.parametrize(("expected", "text"), RECORDED)
def test_recorded(expected: int, text: str) -> None:
    assert number(text) == expected
    log = f"INFO:tensorflow:Found TPU system\r\n\x1b[31m{text}\x1b[0m\nmore\n"
    assert number(log) == expected
    assert number(log.encode()) == expected


def test_every_error_is_recorded() -> None:
    assert {expected for expected, _ in RECORDED} == {*range(1, 48), *range(59, 73), 140}
    assert {expected for expected, *_ in RECORDED_OF_JAX} >= {*range(74, 140), *range(141, 151)}


@pytest.mark.parametrize(("expected", "release", "text"), RECORDED_OF_JAX)
def test_recorded_of_jax(expected: int, release: str, text: str) -> None:
    assert number(text) == expected, release
    log = f"I0000 00:00:1764 pjrt_api.cc:96] PJRT_Api is set\r\n\x1b[31m{text}\x1b[0m\nmore\n"
    assert number(log) == expected
    kind, _, message = text.partition(": ")
    if kind.isidentifier():
        assert number(type(kind, (Exception,), {})(message)) == expected


def test_a_sharding_that_needs_the_whole_array() -> None:
    entry = explain(
        "E0531 10:54:04.832741 2609008 spmd_partitioner.cc:569] [spmd] Involuntary full "
        "rematerialization. The compiler was not able to go from sharding {devices=[2,1,4]<=[8]} to "
        "{devices=[1,8,1]<=[8]} without doing a full rematerialization of the tensor."
    )
    assert entry is not None
    assert entry.code == "P11"


def test_a_performance_trap() -> None:
    entry = explain(RETRACING)
    assert entry is not None
    assert (entry.code, entry.number) == ("P6", None)
    assert entry.headline.startswith("Performance trap P6: ")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_are_not_explained(text: str) -> None:
    assert explain(text) is None
    assert explain(f"Traceback (most recent call last):\n  File 'a.py'\n{text}\n") is None
    assert explain(RuntimeError(text)) is None


def test_the_most_precise_entry_is_chosen() -> None:
    texts = dict(RECORDED)
    assert number(f"{RETRACING}\n{texts[11]}\n{texts[38]}") == 38
    assert number(f"{texts[22]}\n{texts[26]}") == 26
    assert number(f"{texts[1]}\n{texts[46]}") == 1


def test_an_ordinary_error_next_to_a_traceback_from_a_tpu() -> None:
    ordinary = "IndexError: index 0 is out of bounds for axis 0 with size 0"
    ordinary_traceback = (
        f"Traceback (most recent call last):\n  File 'mine.py', line 1\n{ordinary}\n"
    )
    assert number(ordinary_traceback) is None
    assert number(ordinary_traceback + NO_TPU_IN_COLAB) == 5
    assert number("tpu_strategy.py imported\n" + ordinary_traceback) is None
