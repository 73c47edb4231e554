"""`raise_if_unfit` passes only for a program that fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support import programs as made

from tpunb.compiler.fit.memory_limits import LimitError, limit_in_bytes
from tpunb.compiler.program import CompileError, DoesNotFitError, NotKnownError, TpuPrograms

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "number"),
    [
        (None, 16 * GIB),
        (3 * GIB, 3 * GIB),
        (0.5, 8 * GIB),
        (1.0, 16 * GIB),
        ("12 GiB", 12 * GIB),
        ("1.5gib", int(1.5 * GIB)),
        ("512MiB", GIB // 2),
        ("12GB", 12 * 10**9),
        ("25%", 4 * GIB),
        ("4096", 4096),
    ],
)
def test_a_limit_is_bytes_a_share_or_a_string(limit: Any, number: int) -> None:
    assert limit_in_bytes(limit, 16 * GIB) == number


@pytest.mark.parametrize(
    "limit",
    [0, 0.0, -1, True, float("nan"), float("inf"), "", "much", "12 GiX", "-3 GiB", "0%", []],
)
def test_an_invalid_limit_is_refused(limit: Any) -> None:
    with pytest.raises(LimitError, match="is not a limit on memory") as raised:
        limit_in_bytes(limit, 16 * GIB)
    assert '"12 GiB"' in raised.value.fix


def test_a_program_within_the_limit_passes() -> None:
    made.FITS.raise_if_unfit()
    made.FITS.raise_if_unfit(limit="3.5 GiB")
    made.FITS.raise_if_unfit(limit=made.MEMORY.needs)
    TpuPrograms([made.FITS, made.UNTIMED]).raise_if_unfit(0.9)


def test_the_error_names_the_program_and_its_memory() -> None:
    with pytest.raises(DoesNotFitError) as raised:
        made.FITS.raise_if_unfit(limit="3 GiB")
    error = raised.value
    assert error.message == (
        "v3-8: the program takes 3.4 GiB a core, more than the limit of 3 GiB "
        "(of 15.48 GiB available)."
    )
    assert (error.tpu, error.needed, error.limit) == ("v3-8", made.MEMORY.needs, 3 * GIB)
    with pytest.raises(DoesNotFitError):
        made.FITS.raise_if_unfit(limit=made.MEMORY.needs - 1)


@pytest.mark.parametrize("limit", [None, "90%", "1 TiB"])
def test_a_program_that_does_not_fit_fits_no_limit(limit: Any) -> None:
    with pytest.raises(DoesNotFitError, match=r"^v2-8: .* It needs 9\.1 GiB of") as no:
        made.TOO_LARGE.raise_if_unfit(limit)
    assert no.value.needed > no.value.limit
    with pytest.raises(DoesNotFitError):
        TpuPrograms([made.FITS, made.TOO_LARGE]).raise_if_unfit(limit)


@pytest.mark.parametrize("limit", [None, 1.0, "1 TiB"])
def test_an_unknown_verdict_never_fits(limit: Any) -> None:
    open_batch = dataclasses.replace(made.FITS, memory=None, unsized="the batch has no size.")
    without_figures = dataclasses.replace(made.FITS, memory=None)
    for program in (made.UNKNOWN, open_batch, without_figures):
        with pytest.raises(NotKnownError, match="not known"):
            program.raise_if_unfit(limit)
    with pytest.raises(NotKnownError):
        TpuPrograms([made.FITS, made.UNKNOWN]).raise_if_unfit(limit)


def test_a_refused_program_raises_its_refusal() -> None:
    with pytest.raises(CompileError, match="StringJoin") as raised:
        made.REFUSED.raise_if_unfit()
    assert not isinstance(raised.value, DoesNotFitError | NotKnownError)


def test_a_wrong_limit_is_reported_first() -> None:
    with pytest.raises(LimitError):
        made.REFUSED.raise_if_unfit("lots")
