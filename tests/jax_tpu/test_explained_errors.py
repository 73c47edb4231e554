"""Explanations under the errors of JAX in cells, with the messages of the JAX that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.shell import Notebook

SETUP = """\
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
%load_ext tpunb
%tpu_connect --simulate v5e-8 --framework jax --judge off
mesh = Mesh(np.array(jax.devices()[:8]), ("batch",))
two = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("batch", "model"))
x = np.ones((64, 8), "float32")
mapped = lambda f, ins=P("batch"), out=P("batch"), mesh=mesh: jax.shard_map(
    f, mesh=mesh, in_specs=ins, out_specs=out)
"""

CASES = {
    "mapped(lambda a: a, (P('batch'), P()))(x)": "in_specs has 2 specs, and the function has 1 arg",
    "mapped(lambda a: a, P('batch', 'model'), mesh=two)(x[0])": "and the argument float32[8] has 1 ax",
    "mapped(lambda a: a, P('data'))(x)": 'names "data", and the mesh has the axis "batch"',
    "mapped(lambda a: a.mean(), out=P())(x)": 'jax.lax.psum(x, "batch") for the sum',
    "mapped(lambda a: a.mean())(x)": "x.reshape(1)",
    "mapped(lambda a: jax.lax.psum(a, 'model'))(x)": "which the mesh does not have",
    "mapped(lambda a: jax.lax.ppermute(a, 'model', [(0, 1)]))(x)": "which the mesh does not have",
    "mapped(lambda a: jax.lax.psum('batch', a))(x)": "The array comes first",
    "jax.lax.psum(x, 'batch')": 'names the axis "batch"',
    "jax.device_put(x[:10], NamedSharding(mesh, P('batch')))": "Make the size 8 or 16",
    "mapped(lambda a: a)(x[:10])": "Axis 0 has 10 elements",
    "jax.device_put(x, P('batch'))": 'NamedSharding(mesh, P("batch"))',
    "jax.shard_map(lambda a: a, in_specs=P('batch'), out_specs=P('batch'))(x)": "no argument `mesh`",
    "jax.shard_map(lambda a: a, mesh, P('batch'), P('batch'))(x)": "only the function by position",
    "NamedSharding(mesh, 'batch')": "got text where it needs a spec",
    "NamedSharding(P('batch'), mesh)": "The mesh comes first",
    "NamedSharding(mesh, P('model'))": "Use a name of the mesh: P('batch')",
    "jax.device_put(x[0], NamedSharding(two, P('batch', 'model')))": "the array has 1 axis",
    "mapped(lambda a: jax.lax.fori_loop(0, 3, lambda _, c: c + a.sum(), 0.0).reshape(1))(x)": "pcast",
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        yield notebook


@pytest.mark.parametrize("line", CASES)
def test_an_error_is_explained_with_its_own_names(shell: Notebook, line: str) -> None:
    ran = shell.run(line)
    assert ran.error is not None
    said = re.sub(r"\s+", " ", ran.text.rpartition("Known error ")[2])
    assert CASES[line] in said
    assert "check_vma=False" not in said


@pytest.mark.parametrize("call", ["psum(replica_id, 'batch')", "ppermute(one, 'batch', [(0, 1)])"])
def test_a_cell_names_its_own_axis(shell: Notebook, call: str) -> None:
    shell.good("%tpu_connect --simulate v5e-8 --framework jax --judge off")
    ran = shell.run(f"%%tpu_run\none = 1 * replica_id\ntotal = jax.lax.{call}\n")
    assert 'The axis of a cell is "replica"' in ran.text
    assert "In the cell, line 3:" in ran.text
