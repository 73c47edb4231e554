"""Checkpoints of a dry run: what was not computed is not saved, and what is large is not read."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb._util.reachable import reaches
from tpunb.errors import TpuWarning
from tpunb.jax.virtual.dry_record import present_line
from tpunb.jax.virtual.private_names import private
from tpunb.jax.virtual.uncomputed import LARGE, Uncomputed
from tpunb.machine.watched_import import when_imported


@contextlib.contextmanager
def without_files(uncomputed: Uncomputed) -> Iterator[None]:
    """Leave out saving what is not computed and reading what would not be, within a block."""
    changes: list[tuple[str, str, Callable[..., Any]]] = [
        *((module, path, _save) for module, paths in _SAVING.items() for path in paths),
        (_ORBAX, "_read_and_create_array", _restore),
        ("safetensors.flax", "load_file", _load_file),
    ]

    def replace(module: types.ModuleType) -> None:
        for name, path, change in changes:
            kind, _, function = path.rpartition(".")
            owner = getattr(module, kind, None) if kind else module
            if name == module.__name__ and hasattr(owner, function):
                changed = functools.partial(change, uncomputed)
                undo.enter_context(Replaced(owner, function, changed))

    with contextlib.ExitStack() as undo:
        undo.enter_context(when_imported({name for name, _, _ in changes}, replace))
        yield


_SAVING = {
    "numpy": ("save", "savez", "savez_compressed", "savetxt"),
    "jax.numpy": ("save", "savez"),
    "safetensors.numpy": ("save_file",),
    "safetensors.flax": ("save_file",),
    "flax.training.checkpoints": ("save_checkpoint", "save_checkpoint_multiprocess"),
    "equinox": ("tree_serialise_leaves",),
    "orbax.checkpoint.checkpoint_manager": ("CheckpointManager.save",),
    "orbax.checkpoint._src.checkpointers.checkpointer": ("Checkpointer.save",),
    "orbax.checkpoint._src.checkpointers.async_checkpointer": ("AsyncCheckpointer.save",),
    "keras.src.saving.saving_api": ("save_model", "save_weights"),
}
"""The functions that training loops save with, by their modules. Orbax reads arrays in threads."""


def _save(uncomputed: Uncomputed, original: Any, *args: Any, **named: Any) -> Any:
    """Save a checkpoint, unless it would hold what was not computed."""
    variables = [each.value for arg in args for each in getattr(arg, "variables", ())]
    array = sys.modules["jax"].Array
    if not reaches(
        (args, named, variables), lambda each: isinstance(each, array) and uncomputed.has(each)
    ):
        return original(*args, **named)
    said = "The file or checkpoint is not saved: it has arrays that are not computed (dry run)."
    warnings.warn_explicit(said, TpuWarning, *present_line())
    return False


_ORBAX = "orbax.checkpoint._src.serialization.serialization"
"""The module of Orbax's function that reads an array, after its metadata."""


async def _restore(uncomputed: Uncomputed, original: Any, stored: Any, **named: Any) -> Any:
    """Return an array of a checkpoint and the number of bytes that were read."""
    shape, dtype = named["global_shape"], named["dtype"] or stored.dtype.numpy_dtype
    if math.prod(shape) * dtype.itemsize < LARGE:
        return await original(stored, **named)
    return _uncomputed(uncomputed, shape, dtype, named["sharding"]), 0


def _load_file(uncomputed: Uncomputed, original: Any, filename: Any, **named: Any) -> Any:
    """Return the arrays of a file of Safetensors, which begins with the shapes and the types."""
    del original
    with sys.modules["safetensors"].safe_open(filename, framework="flax", **named) as file:
        return {name: _loaded(uncomputed, file, name) for name in file.keys()}  # noqa: SIM118


def _loaded(uncomputed: Uncomputed, file: Any, name: str) -> Any:
    stored = file.get_slice(name)
    shape = tuple(stored.get_shape())
    if not shape or (rows := stored[:0]).dtype.itemsize * math.prod(shape) < LARGE:
        return file.get_tensor(name)
    return _uncomputed(uncomputed, shape, rows.dtype, rows.sharding, committed=False)


def _uncomputed(
    uncomputed: Uncomputed, shape: Any, dtype: Any, sharding: Any, *, committed: bool = True
) -> Any:
    dtype = sys.modules["jax"].dtypes.canonicalize_dtype(dtype)
    aval = private("jax._src.core").ShapedArray(shape, dtype)
    return uncomputed.make(aval, sharding, committed=committed)
