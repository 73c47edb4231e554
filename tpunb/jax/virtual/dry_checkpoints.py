"""Checkpoints of a dry run: what was not computed is not saved."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb._util.reachable import reaches
from tpunb.errors import TpuWarning
from tpunb.jax.virtual.dry_record import present_line
from tpunb.machine.watched_import import when_imported

_ORBAX = {
    "orbax.checkpoint.checkpoint_manager": "CheckpointManager",
    "orbax.checkpoint._src.checkpointers.checkpointer": "Checkpointer",
    "orbax.checkpoint._src.checkpointers.async_checkpointer": "AsyncCheckpointer",
}
"""The classes of Orbax that save, by their modules. It reads arrays in parts and in threads."""


@contextlib.contextmanager
def leaving_out_checkpoints(is_uncomputed: Callable[[Any], bool]) -> Iterator[None]:
    """Let Orbax save nothing that has an uncomputed array, within a block.

    Args:
        is_uncomputed: Whether a value is an array that was not computed.
    """
    with contextlib.ExitStack() as undo:

        def replace(module: types.ModuleType) -> None:
            kind = getattr(module, _ORBAX[module.__name__], None)
            if kind is not None:
                undo.enter_context(Replaced(kind, "save", functools.partial(_save, is_uncomputed)))

        undo.enter_context(when_imported(_ORBAX, replace))
        yield


def _save(
    is_uncomputed: Callable[[Any], bool], original: Any, saver: Any, *args: Any, **named: Any
) -> Any:
    """Save a checkpoint, unless it would hold what was not computed."""
    if not reaches((args, named), is_uncomputed):
        return original(saver, *args, **named)
    said = "The checkpoint is not saved: it has arrays that are not computed (dry run)."
    warnings.warn_explicit(said, TpuWarning, *present_line())
    return False
