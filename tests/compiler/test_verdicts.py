"""Verdicts match libtpu's, for some of the functions that `python -m verdicts` compares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.tiers import thorough
from verdicts import documented
from verdicts.compare import Compiler, Itself, Ours, difference, itself, ours
from verdicts.functions import FUNCTIONS

SOME = (
    "networks.attention_masked",
    "networks.gru_gradient",
    "networks.training_step",
    "arrays.sort_gradient",
    "arrays.sparse_product",
    "arrays.ragged_to_dense",
    "mathematics.solve",
    "mathematics.eigenvalues",
    "mathematics.complex_gradient",
    "images.crop_and_resize",
    "images.suppression_combined",
    "control.bounded_gradient",
    "control.growing",
    "randomness.categorical",
    "randomness.gamma",
    "wide.long_einsum",
    "wide.double_max_pool_gradient",
    "wide.unsigned_product",
    "wide.complex128_inside",
    "sizes.masked_top_k",
    "sizes.unique_long",
    "sizes.one_hot_depth",
    "outside.words_hashed",
    "outside.python",
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    process = Compiler()
    yield process
    process.close()


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("name", [*SOME[:4], *thorough(SOME[4:])])
def test_a_verdict_matches_libtpu(name: str, compiler: Compiler) -> None:
    assert not difference(name, ours(FUNCTIONS[name]), itself(FUNCTIONS[name], compiler))


def test_differences_are_found() -> None:
    name = SOME[0]
    assert "compile, check, rules: " in difference(name, Ours(), Itself("UNIMPLEMENTED: it"))
    assert "rules: " in difference(name, Ours(rules=("dynamic-shape",)), Itself())
    assert "a peak of 90" in difference(name, Ours(peak=90), Itself(peak=100))
    assert "compile: " in difference(name, Ours(), Itself("libtpu: crashed (-6)"))
    assert not difference(name, Ours(unknown="it crashed"), Itself("libtpu: crashed (-6)"))
    assert not difference(name, Ours(peak=100), Itself(peak=100))
    assert "and is not" in difference(next(iter(documented.VERDICTS)), Ours(), Itself())
    assert {*SOME, *documented.VERDICTS} <= FUNCTIONS.keys()
