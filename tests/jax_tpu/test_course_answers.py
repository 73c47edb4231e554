"""Answers of lesson 3: their programs as plain data, and what counts as work in `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tpunb._util.plain_data import packed, unpacked
from tpunb.teach.course import jax_answers
from tpunb.teach.puzzles.jax_programs import mesh

# The collectives of the CPU's program are meant.
pytestmark = pytest.mark.filterwarnings("ignore:as_text:tpunb.errors.TpuWarning")


@pytest.fixture(autouse=True)
def _virtual_tpu(connect: Callable[..., Any]) -> None:
    connect()


def images() -> Any:
    numbers = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    return jax.device_put(numbers, jax.sharding.NamedSharding(mesh(), P("core")))


def mapped(fn: Callable[..., Any], *out: str) -> Callable[..., Any]:
    return jax.shard_map(fn, mesh=mesh(), in_specs=P("core"), out_specs=P(*out))


def centred(part: Any) -> Any:
    return part - jnp.mean(part, axis=0)


def by_shape(x: Any) -> Any:
    parts = x.reshape(8, 8, 16)
    return (parts - parts.mean(1, keepdims=True)).reshape(64, 16)


def third(part: Any) -> Any:
    mine = jnp.where(jax.lax.axis_index("core") == 3, part.mean().reshape(1), 0)
    return jax.lax.psum(mine, "core")


def beside_the_work(x: Any) -> Any:
    mapped(centred, "core")(x)  # nothing depends on it
    return by_shape(x)


Answer = tuple[Callable[..., Any], list[str], list[str], bool]
ANSWERS: dict[str, Answer] = {
    "right": (lambda x: mapped(centred, "core")(x), [], [], True),
    "a collective": (lambda x: mapped(third)(x), ["all-reduce"], ["all-reduce"], True),
    "an idle map": (lambda x: by_shape(mapped(lambda part: part, "core")(x)), [], [], False),
    "a map beside the work": (beside_the_work, [], [], False),
    "no map": (by_shape, [], [], False),
    "the compiler's collective": (lambda x: x - x.mean(0), ["all-reduce"], [], False),
}
"""Answers, with the collectives of the program and of its code, and whether a map has the work."""


def through_text(value: Any) -> Any:
    return unpacked(packed(value))


@pytest.mark.parametrize("name", ANSWERS)
def test_work_counts_inside_of_a_map_whose_results_are_used(name: str) -> None:
    answer, *structure = ANSWERS[name]
    types = jax_answers.types_of([images()])
    program = through_text(jax_answers.exported(answer, through_text(types)))
    assert jax_answers.structure(program, [images()]) == tuple(structure)
    result = jax_answers.runner(program, [images()])(images())
    assert np.allclose(result, answer(images()), atol=1e-6)


def test_an_array_keeps_its_place_through_text() -> None:
    array = images()
    (kind,) = through_text(jax_answers.types_of([array]))
    same = jax_answers.placed(through_text(array), kind)
    assert same.sharding.is_equivalent_to(array.sharding, 2)
    assert [shard.data.shape for shard in same.addressable_shards] == [(8, 16)] * 8
