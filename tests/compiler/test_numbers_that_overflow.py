"""libtpu adds sizes in 64 bits; figures that overflow are not repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.tiers import THOROUGH

from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.program import TpuProgram

EXBI = 2**60
HUGE = tf.TensorSpec([2**30, 2**29])  # 2 EiB


def results(number: int) -> Callable[[Any], Any]:
    """Return a function with a number of results of 4 EiB each."""
    return lambda x: [tf.broadcast_to(x + float(i), [2**30, 2**30]) for i in range(number)]


def corners(*values: Any) -> Any:
    return tf.add_n([value[:8, :8] for value in values])


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    ("fn", "args", "least"),
    [
        (lambda x, y: x @ y, [HUGE, tf.TensorSpec([2**29, 8])], 2 * EXBI),
        (lambda x: x * 2.0, [tf.TensorSpec([2**27, 2**26])], EXBI // 32),
        pytest.param(
            results(2),
            [tf.TensorSpec([])],
            8 * EXBI,  # a negative number of 64 bits
            marks=THOROUGH,
        ),
        (results(4), [tf.TensorSpec([])], 16 * EXBI),  # 0
        (results(5), [tf.TensorSpec([])], 20 * EXBI),  # 4 EiB
        (corners, [HUGE] * 5, 10 * EXBI),
        (corners, [*[HUGE] * 8, tf.TensorSpec([2**15, 2**13])], 16 * EXBI),  # 1 GiB
    ],
    ids=["product", "map", "negative", "zero", "small", "arguments", "arguments, small"],
)
def test_an_overflown_sum_is_not_reported(fn: Any, args: list[Any], least: int) -> None:
    program = compile(fn, *args, tpu="v5e-8")
    assert [error.code for error in program.errors] == ["memory"]
    memory = program.memory
    assert memory is not None
    assert memory.peak > least
    assert memory.bound
    assert not memory.fits
    for text in (program.headline, str(program), program.errors[0].reason):
        assert "more than" in text
        assert "1 B" not in text
        assert "15.75 GiB of " not in text


@pytest.mark.usefixtures("libtpu")
def test_a_size_that_64_bits_cannot_count() -> None:
    program: TpuProgram = compile(tf.reduce_sum, tf.TensorSpec([2**62], tf.int8), tpu="v5e-8")
    assert not program.ok
    assert "64 bits" in program.errors[0].reason
