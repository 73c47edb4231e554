"""Checkpoints of a dry run: what was not computed is not saved."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb._util.reachable import reaches
from tpunb.errors import TpuWarning
from tpunb.jax.virtual.dry_record import present_line
from tpunb.machine.watched_import import when_imported

_SAVING = {
    "orbax.checkpoint.checkpoint_manager": ("CheckpointManager.save",),
    "orbax.checkpoint._src.checkpointers.checkpointer": ("Checkpointer.save",),
    "orbax.checkpoint._src.checkpointers.async_checkpointer": ("AsyncCheckpointer.save",),
    "keras.src.saving.saving_api": ("save_model", "save_weights"),
}
"""The functions that training loops save with, by their modules. Orbax reads arrays in threads."""


@contextlib.contextmanager
def leaving_out_checkpoints(is_uncomputed: Callable[[Any], bool]) -> Iterator[None]:
    """Let Orbax and Keras save nothing that has an uncomputed array, within a block.

    Args:
        is_uncomputed: Whether a value is an array that was not computed.
    """
    save = functools.partial(_save, is_uncomputed)
    with contextlib.ExitStack() as undo:

        def replace(module: types.ModuleType) -> None:
            for path in _SAVING[module.__name__]:
                kind, _, name = path.rpartition(".")
                owner = getattr(module, kind, None) if kind else module
                if hasattr(owner, name):
                    undo.enter_context(Replaced(owner, name, save))

        undo.enter_context(when_imported(_SAVING, replace))
        yield


def _save(is_uncomputed: Callable[[Any], bool], original: Any, *args: Any, **named: Any) -> Any:
    """Save a checkpoint, unless it would hold what was not computed."""
    variables = [each.value for arg in args for each in getattr(arg, "variables", ())]
    array = sys.modules["jax"].Array
    if not reaches(
        (args, named, variables), lambda each: isinstance(each, array) and is_uncomputed(each)
    ):
        return original(*args, **named)
    said = "The checkpoint is not saved: it has arrays that are not computed (dry run)."
    warnings.warn_explicit(said, TpuWarning, *present_line())
    return False
