"""What collectives do to values, compared with loops over single elements, and with JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.jax_process import said_with_jax

from tpunb.display.describe.collective_effect import COMBINED, NOTHING, effect_of
from tpunb.errors import TpunbError

RANDOM = np.random.default_rng(0)
MATRICES = RANDOM.integers(-9, 9, (4, 4, 8))


def after(operation: str, values: Any, **options: Any) -> list[Any]:
    return [held.values.tolist() for held in effect_of(operation, values, **options).after]


def origins(operation: str, values: Any, **options: Any) -> list[Any]:
    return [held.origins.tolist() for held in effect_of(operation, values, **options).after]


@pytest.mark.parametrize(
    ("reduction", "combine"),
    [("sum", sum), ("mean", lambda of: sum(of) / len(of)), ("max", max), ("min", min)],
)
def test_a_reduction_combines_each_element(
    reduction: str, combine: Callable[[list[int]], float]
) -> None:
    expected = [
        [combine([int(MATRICES[core, row, column]) for core in range(4)]) for column in range(8)]
        for row in range(4)
    ]
    assert after("all_reduce", MATRICES, reduction=reduction) == [expected] * 4
    rows = after("reduce_scatter", MATRICES, reduction=reduction)
    assert rows == [[expected[core]] for core in range(4)]
    columns = after("reduce_scatter", MATRICES, reduction=reduction, axis=1)
    assert columns == [[row[2 * core : 2 * core + 2] for row in expected] for core in range(4)]
    assert origins("all_reduce", [1, 2], reduction=reduction) == [COMBINED] * 2


def test_a_gather_puts_parts_of_any_length_one_after_the_other() -> None:
    assert after("all_gather", [[1, 2], [3], [4, 5]]) == [[1, 2, 3, 4, 5]] * 3
    assert origins("all_gather", [[1, 2], [3], [4, 5]]) == [[0, 0, 1, 2, 2]] * 3
    assert after("all_gather", [10, 20]) == [[10, 20]] * 2
    wide = after("all_gather", [[[1], [2]], [[3], [4]]], axis=-1)
    assert wide == [[[1, 3], [2, 4]]] * 2


def test_an_all_to_all_sends_part_k_to_core_k() -> None:
    values = [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert after("all_to_all", values) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert origins("all_to_all", values) == [[0, 1, 2]] * 3
    turned = after("all_to_all", MATRICES, axis=1, concat_axis=0)
    for target in range(4):
        for row in range(16):
            source = MATRICES[row // 4, row % 4, 2 * target : 2 * target + 2]
            assert turned[target][row] == source.tolist()


def test_a_permute_leaves_zeros_where_nothing_arrives() -> None:
    pairs = [(0, 1), (1, 2)]
    assert after("ppermute", [[5], [6], [7]], pairs=pairs) == [[0], [5], [6]]
    assert origins("ppermute", [[5], [6], [7]], pairs=pairs) == [[NOTHING], [0], [1]]
    assert effect_of("ppermute", [5, 6, 7], pairs=pairs).sends == ((0, 1), (1, 2))


def test_a_broadcast_has_one_source() -> None:
    assert after("broadcast", [5, 6, 7], source=2) == [7, 7, 7]
    assert after("broadcast", [5, 6, 7]) == [5, 5, 5]


def test_types_stay_as_they_are() -> None:
    small = np.array([[100], [100]], "int8")
    (held, _) = effect_of("psum", small).after
    assert held.values.dtype == "int8"
    assert held.values.tolist() == [-56]  # 200 does not fit, on a TPU neither
    assert effect_of("psum", np.float16([60_000, 60_000])).after[0].values == np.inf
    assert effect_of("ppermute", [1, 2], pairs=np.array([[0, 1]])).sends == ((0, 1),)
    assert effect_of("pmax", [True, False]).after[0].values.tolist() is True
    assert effect_of("pmean", np.float32([1, 2])).after[0].values.dtype == "float32"


@pytest.mark.parametrize("name", ["all-reduce", "ALL_REDUCE", "psum"])
def test_a_collective_has_the_names_of_jax_and_xla(name: str) -> None:
    assert effect_of(name, [1, 2]).operation == "all_reduce"


@pytest.mark.parametrize(
    ("operation", "values", "options", "words"),
    [
        ("all_redcue", [1, 2], {}, "Did you mean `all_reduce`"),
        ("all_reduce", [1], {}, "2 to 16 cores"),
        ("all_reduce", list(range(17)), {}, "2 to 16 cores"),
        ("all_reduce", ["a", "b"], {}, "core 0 is not an array of numbers"),
        ("all_reduce", [[1], [1, 2]], {}, "same shape on all cores"),
        ("all_reduce", [1, 2], {"reduction": "product"}, '"sum", "mean", "max" or "min"'),
        ("all_reduce", [1, 2], {"axis": 0}, "`all_reduce` does not take `axis`"),
        ("all_reduce", [True, False], {}, "True and False"),
        ("pmax", [1j, 2], {}, "max of complex numbers"),
        ("all_reduce", [[1, [2]], [1, 2]], {}, "not an array of numbers"),
        ("broadcast", [1, 2], {"source": "0"}, "no core '0'"),
        ("broadcast", [1, 2], {"source": True}, "no core True"),
        ("psum", [1, 2], {"reduction": "mean"}, "means the sum"),
        ("all_gather", [[1], [2]], {"axis": 1}, "Choose an axis from -1 to 0"),
        ("all_gather", [[1], [[2]]], {}, "same shape on all cores"),
        ("all_to_all", [[1, 2, 3], [4, 5, 6]], {}, "2 equal parts, and its size is 3"),
        ("reduce_scatter", [1, 2], {}, "a single number has none"),
        ("ppermute", [1, 2], {}, "`pairs`"),
        ("ppermute", [1, 2], {"pairs": [(0, 2)]}, "no core 2"),
        ("ppermute", [1, 2], {"pairs": [(0, 1), (0, 0)]}, "Core 0 sends to several"),
        ("ppermute", [1, 2], {"pairs": [(0, 1), (1, 1)]}, "Core 1 receives from several"),
        ("ppermute", [1, 2], {"pairs": [0, 1]}, "a list of pairs"),
        ("ppermute", [1, 2], {"pairs": 3}, "a list of pairs"),
        ("broadcast", [1, 2], {"source": 2}, "no core 2"),
    ],
)
def test_wrong_arguments_are_refused(
    operation: str, values: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(TpunbError) as refused:
        effect_of(operation, values, **options)
    assert words in str(refused.value)
    assert refused.value.fix


PROGRAM = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from tpunb.display.describe.collective_effect import effect_of

mesh = Mesh(np.array(jax.devices()), ("x",))
values = np.random.default_rng(0).normal(size=(4, 4, 8)).astype("float32")
pairs = [(0, 2), (2, 3), (1, 1)]


def by_jax(function):
    def on_one(part):
        return function(part[0])[None]
    mapped = jax.shard_map(on_one, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return np.asarray(mapped(values))


lax = jax.lax
same = {
    "psum": (lambda x: lax.psum(x, "x"), {}),
    "pmean": (lambda x: lax.pmean(x, "x"), {}),
    "pmax": (lambda x: lax.pmax(x, "x"), {}),
    "pmin": (lambda x: lax.pmin(x, "x"), {}),
    "all_gather": (lambda x: lax.all_gather(x, "x", axis=1, tiled=True), {"axis": 1}),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), {"axis": 1}),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), {"axis": 1, "concat_axis": 0}),
    "ppermute": (lambda x: lax.ppermute(x, "x", pairs), {"pairs": pairs}),
}
said = {}
for name, (function, options) in same.items():
    ours = np.stack([held.values for held in effect_of(name, list(values), **options).after])
    said[name] = bool(np.allclose(by_jax(function), ours, rtol=1e-5, atol=1e-6))
half = [jnp.bfloat16(number) for number in (1, 2, 3, 5)]
said["bfloat16"] = float(effect_of("pmean", half).after[0].values) == 2.75
"""


def test_collectives_are_those_of_jax(tmp_path: Path) -> None:
    said = said_with_jax(PROGRAM, tmp_path)
    assert said == dict.fromkeys(said, True)
    assert len(said) == 9
