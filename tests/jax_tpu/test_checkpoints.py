"""`%%tpu_run --checkpoint` in JAX: a run that continues after its kernel has died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpunb.errors import CellError, TpuWarning
from tpunb.training.checkpoint_settings import CheckpointSettings

CELL = """
key, draw = jax.random.split(key)
noise = jax.random.normal(draw, ())
loss = ctx.all_reduce("mean", jnp.mean((batch @ params["w"]) ** 2)) + 0 * noise
params = {"w": params["w"] - 0.1 * noise, "half": params["half"] * 2}
mine = mine + replica_id
count = count + 1
"""


def batches(size: int = 30, shift: float = 0.0) -> Any:
    return (np.full((8, 2), number + shift, np.float32) for number in range(size))


@pytest.fixture
def cells(connect: Callable[..., Any]) -> Any:
    return connect("v5e-8").cells


def names() -> dict[str, Any]:
    return {
        "jax": jax,
        "jnp": jnp,
        "key": jax.random.key(0),
        "params": {"w": jnp.ones(2), "half": jnp.ones((), jnp.bfloat16)},
        "mine": jnp.zeros((), jnp.int32),
        "count": 0,
    }


def same(one: Any, other: Any) -> bool:
    leaves = [jax.tree.leaves(value) for value in (one, other)]
    return all(_equal(a, b) for a, b in zip(*leaves, strict=True))


def _equal(one: Any, other: Any) -> bool:
    if hasattr(one, "is_whole"):
        return [int(part) for part in one.values] == [int(part) for part in other.values]
    if jax.dtypes.issubdtype(getattr(one, "dtype", None), jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def test_a_run_continues_as_if_it_had_not_stopped(cells: Any, tmp_path: Path) -> None:
    whole = cells.run(CELL, names(), data=batches(), plot=["loss"])
    settings = CheckpointSettings(str(tmp_path / "run"), every=5)
    cells.run(CELL, names(), data=batches(), steps=12, plot=["loss"], checkpoint=settings)
    again = cells.run(CELL, names(), data=batches(), plot=["loss"], checkpoint=settings)
    assert again.steps == 30
    for name in ("key", "params", "mine", "count", "loss"):
        assert same(again.assigned[name], whole.assigned[name]), name
    assert again.history.columns("loss")[2].tolist() == whole.history.columns("loss")[2].tolist()
    assert again.assigned["params"]["half"].dtype == jnp.bfloat16
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_complete_run_is_restored(cells: Any, tmp_path: Path) -> None:
    settings = CheckpointSettings(str(tmp_path), every=10)
    first = cells.run(CELL, names(), data=batches(), checkpoint=settings)
    again = cells.run(CELL, names(), data=batches(), checkpoint=settings)
    assert same(again.assigned["params"], first.assigned["params"])
    assert same(again.assigned["noise"], first.assigned["noise"])


def test_restart_begins_again(cells: Any, tmp_path: Path) -> None:
    cells.run(CELL, names(), data=batches(8), checkpoint=CheckpointSettings(str(tmp_path), every=2))
    settings = CheckpointSettings(str(tmp_path), every=2, restart=True)
    again = cells.run(CELL, names(), data=batches(8), checkpoint=settings)
    assert int(again.assigned["count"]) == 8


def test_what_does_not_fit_is_refused(cells: Any, tmp_path: Path) -> None:
    settings = CheckpointSettings(str(tmp_path), every=2)
    cells.run(CELL, names(), data=batches(), steps=8, checkpoint=settings)
    with pytest.raises(CellError, match="is of another cell"):
        cells.run(CELL + "other = 1", names(), data=batches(), checkpoint=settings)
    wider = {**names(), "params": {"w": jnp.ones(3), "half": jnp.ones((), jnp.bfloat16)}}
    with pytest.raises(CellError, match=r"`params` has float32\[3\], and float32\[2\]"):
        cells.run(CELL, wider, data=batches(), checkpoint=settings)
    fewer = {**names(), "params": {"w": jnp.ones(2)}}
    with pytest.raises(CellError, match="its structure is"):
        cells.run(CELL, fewer, data=batches(), checkpoint=settings)
    with pytest.raises(CellError, match="The data ends after 3 batches"):
        cells.run(CELL, names(), data=batches(3), checkpoint=settings)
    with pytest.warns(TpuWarning, match="The data is not the same as before"):
        cells.run(CELL, names(), data=batches(30, shift=1.0), checkpoint=settings)


def test_damaged_and_foreign_files(cells: Any, tmp_path: Path) -> None:
    settings = CheckpointSettings(str(tmp_path), every=2)
    (tmp_path / "step-4.npz").write_bytes(b"damaged")
    with pytest.raises(CellError, match="cannot be read"):
        cells.run(CELL, names(), data=batches(8), checkpoint=settings)
    np.savez(tmp_path / "step-4.npz", position=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(CellError, match="did not save"):
        cells.run(CELL, names(), data=batches(8), checkpoint=settings)
    (tmp_path / "file").write_text("")
    with pytest.raises(CellError, match="cannot be kept"):
        cells.run(
            CELL, names(), data=batches(8), checkpoint=CheckpointSettings(str(tmp_path / "file"))
        )
