"""Checkpoints of a run in JAX: one file for each, with the values of the cell's names.

The state is restored into the trees that the notebook has under the same names, so that a file
holds only numbers. Under other names, arrays come back, but
trees of arrays do not.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tpunb._util.atomic_files import write_file
from tpunb._util.units import grouped
from tpunb.cells.kept_checkpoints import OTHER_FOLDER, KeptCheckpoints, reason
from tpunb.cells.reading.source import CellSource
from tpunb.cells.run_state import RunState
from tpunb.errors import CellError
from tpunb.jax.cells.arguments import PARTS, WHOLE, flattened, placed
from tpunb.training.checkpoint_settings import CheckpointSettings
from tpunb.training.history import History
from tpunb.virtual.per_replica import PerReplica

_FILE = re.compile(r"step-(\d+)\.npz")
_KEPT = 2
"""The number of checkpoints in the folder: the last, and the one before it."""

_POSITION = "position"
_PLAIN = (bool, int, float, str, type(None))


class Checkpoints(KeptCheckpoints):
    """The checkpoints of one run of JAX in a folder.

    Args:
        settings: The folder, and when to save.
        cell: The cell.
        history: The run's curves.
        mesh: The mesh of the cells.
        state: Returns the present values of the names that steps pass on.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        cell: CellSource,
        history: History,
        mesh: jax.sharding.Mesh,
        state: Callable[[], Mapping[str, Any]],
    ) -> None:
        super().__init__(settings, cell, "", history, mesh.size)
        self._folder = Path(settings.folder)
        self._mesh, self._state = mesh, state
        self._arrays: list[Any] = []

    def _files(self) -> list[Path]:
        """Return the checkpoints, the oldest first."""
        found = [path for path in self._folder.iterdir() if _FILE.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.partition("-")[2]))

    def _newest(self) -> str | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files = self._files()
        except OSError as error:
            raise CellError(
                f"Checkpoints cannot be kept in {self._folder}: {reason(error)}.",
                fix="Name a folder of this machine that can be written: --checkpoint DIR.",
            ) from error
        return str(files[-1]) if files else None

    def _remove(self) -> None:
        for path in self._files():
            path.unlink()

    # Writing

    def _write(self, state: RunState) -> None:
        arrays: list[Any] = []
        values = {name: _described(value, arrays) for name, value in state.values.items()}
        kept = {name: each for name, each in values.items() if each is not None}
        position = json.dumps({**self._position(state), "values": kept})
        file = io.BytesIO()
        columns: dict[str, Any] = {str(number): array for number, array in enumerate(arrays)}
        columns[_POSITION] = np.frombuffer(position.encode(), np.uint8)
        np.savez(file, **columns)
        write_file(self._folder / f"step-{state.done}.npz", file.getvalue())
        for path in self._files()[:-_KEPT]:
            path.unlink()

    def _fingerprint(self, batch: Any) -> int:
        check = 0
        for leaf in flattened(batch)[0]:
            check = zlib.crc32(np.ascontiguousarray(np.asarray(leaf)).view(np.uint8).data, check)
        return check

    # Reading

    def _read(self, path: str) -> dict[str, Any]:
        try:
            with np.load(path, allow_pickle=False) as file:
                content = json.loads(file[_POSITION].tobytes())
                self._arrays = [file[str(number)] for number in range(len(file.files) - 1)]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise CellError(
                f"The checkpoint {path} cannot be read: {reason(error)}.", fix=OTHER_FOLDER
            ) from error
        return content if isinstance(content, dict) else {}

    def _refuse_others(self, content: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of values that do not fit the notebook's."""
        for name, value in self._state().items():
            saved = content["values"].get(name)
            if saved is None:
                continue  # it was not saved, and the notebook's own value stays
            now, tree = flattened(value)
            step = grouped(content["done"])
            if saved["tree"] != str(tree):
                raise CellError(
                    f"`{name}` is not the same as in the checkpoint in {self._folder}, at step "
                    f"{step}: its structure is {tree}, and {saved['tree']} there.",
                    fix=OTHER_FOLDER,
                )
            for leaf, there in zip(now, saved["leaves"], strict=True):
                kind = _kind(leaf)
                if kind and "kind" in there and there["kind"] != kind:
                    raise CellError(
                        f"`{name}` has {kind}, and {there['kind']} in the checkpoint in "
                        f"{self._folder}, at step {step}.",
                        fix=OTHER_FOLDER,
                    )

    def _values(self, content: Mapping[str, Any]) -> dict[str, Any]:
        state = self._state()
        values = {}
        for name, saved in content["values"].items():
            before, tree = flattened(state.get(name))
            if str(tree) != saved["tree"] or len(before) != len(saved["leaves"]):
                before, tree = [None], jax.tree.structure(0)
            if len(before) != len(saved["leaves"]):
                continue  # a tree of a name that no step reads
            pairs = zip(saved["leaves"], before, strict=True)
            values[name] = tree.unflatten([self._leaf(there, old) for there, old in pairs])
        return values

    def _leaf(self, saved: Mapping[str, Any], before: Any) -> Any:
        """Return a leaf that was saved, placed like the notebook's."""
        if "plain" in saved:
            return saved["plain"]
        array = self._arrays[saved["array"]].view(np.dtype(saved["dtype"]))
        if "key" in saved:
            array = jax.random.wrap_key_data(array, impl=saved["key"])
        if "replica" in saved:
            spec = WHOLE if saved["whole"] else PARTS
            shape = tuple(saved["replica"])
            return PerReplica(placed(array, self._mesh, spec), shape, is_whole=saved["whole"])
        if isinstance(before, jax.Array) and before.shape == array.shape:
            return jax.device_put(array, before.sharding)
        return placed(array, self._mesh, WHOLE)

    def _restore(self, path: str, content: Mapping[str, Any]) -> None:
        """Do nothing: a run in JAX changes nothing beside its values."""
        self._arrays = []


def _described(value: Any, arrays: list[Any]) -> dict[str, Any] | None:
    """Return a value as JSON, and append its arrays; None if it has other leaves."""
    leaves, tree = flattened(value)
    known = len(arrays)
    described = []
    for leaf in leaves:
        if (each := _described_leaf(leaf, arrays)) is None:
            del arrays[known:]
            return None
        described.append(each)
    return {"tree": str(tree), "leaves": described}


def _described_leaf(leaf: Any, arrays: list[Any]) -> dict[str, Any] | None:
    if isinstance(leaf, _PLAIN):
        return {"plain": leaf}
    described: dict[str, Any] = {"array": len(arrays), "kind": _kind(leaf)}
    if isinstance(leaf, PerReplica):
        described |= {"replica": list(leaf.shape), "whole": leaf.is_whole}
        leaf = leaf.array
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return None
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        described["key"] = str(jax.random.key_impl(leaf))
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        return None
    arrays.append(array)
    return {**described, "dtype": array.dtype.name}


def _kind(leaf: Any) -> str:
    """Return the type and shape of an array; empty for other values."""
    dtype, shape = getattr(leaf, "dtype", None), getattr(leaf, "shape", None)
    return "" if dtype is None or shape is None else f"{dtype}{list(shape)}"
