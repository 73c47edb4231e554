"""Programs that compute parts again for the gradient and do not keep them: whether they fit."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb._util.units import byte_count
from tpunb.compiler.jax_functions import function_for
from tpunb.compiler.program import TpuProgram
from tpunb.compiler.topologies import Target
from tpunb.compiler.verdict import Settings
from tpunb.errors.code_problems import is_library, is_of_this_package
from tpunb.virtual.keras_internals import blocks_of
from tpunb.virtual.patch.patch_tools import attribute

_log = logging.getLogger("tpunb.compiler")


def with_keras_remat(
    compiled: Callable[[], TpuProgram], models: Sequence[Any], kind: Target, settings: Settings
) -> Iterator[str]:
    """The sentence that a batch fits if `keras.remat` wraps the models' blocks, if it does.

    Args:
        compiled: Compiles the function that uses the models.
        models: Keras models.
        kind: The TPU type.
        settings: How to compile.
    """
    # Models may share a block, and a cell may reach a model by several names.
    blocks = list({id(block): block for model in models for block in blocks_of(model)}.values())
    remat = getattr(sys.modules.get("keras"), "remat", None)
    if not blocks or remat is None:
        return

    def again(call: Callable[..., Any]) -> Callable[..., Any]:
        # Keywords such as `training` are no tensors, which are all that either backend takes.
        return lambda *args, **options: remat(lambda *tensors: call(*tensors, **options))(*args)

    settings.progress(f"trying {kind.tpu.name} with {len(blocks)} blocks computed again")
    try:
        with contextlib.ExitStack() as undo:
            for block in blocks:
                undo.enter_context(attribute(block, "call", again(block.call)))
            program = compiled()
    except Exception:  # such as one of Keras's, of a block with random numbers
        _log.debug("not computed again", exc_info=True)
        return
    if program.ok and program.memory:
        names = [block.name for block in blocks]
        listed = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
        yield (
            f"The same batch fits if keras.remat computes {listed} again for the gradient: "
            f"{byte_count(program.memory.peak)} a core."
        )


def with_jax_checkpoint(
    fn: Any, args: Sequence[Any], kind: Target, settings: Settings
) -> Iterator[str]:
    """The sentence that a function of JAX fits if `jax.checkpoint` wraps its scans' bodies.

    These are a model's layers as a rule, and a scan keeps what the gradient needs of each. Outside
    of scans the TPU's compiler itself computes again what does not fit.

    Args:
        fn: The function.
        args: Its arguments.
        kind: The TPU type.
        settings: How to compile.
    """
    lines: list[int | None] = []
    settings.progress(f"trying {kind.tpu.name} with scans computed again")
    try:
        with _scans_computed_again(sys.modules["jax"], lines):
            function = function_for(fn, args, None, settings)
        program = function.on(kind, settings) if lines else None
    except Exception:  # the function's own verdict stands
        _log.debug("not computed again", exc_info=True)
        return
    if program is not None and program.ok and program.memory:
        known = sorted({line for line in lines if line is not None})
        at = f" at line{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        yield (
            f"The same fits if jax.checkpoint wraps the body of jax.lax.scan{at if known else ''}: "
            f"{byte_count(program.memory.peak)} a core."
        )


@contextlib.contextmanager
def _scans_computed_again(jax: Any, lines: list[int | None]) -> Iterator[None]:
    """A block in which the bodies of scans are traced in `jax.checkpoint`.

    Args:
        jax: JAX.
        lines: Receives the user's line of each scan.
    """
    scan = jax.lax.scan

    def again(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
        lines.append(_users_line())
        return scan(jax.checkpoint(body, prevent_cse=False), *args, **options)

    # JAX keeps what it has traced, for each setting: this one changes no program, and warns.
    other = "allow" if jax.config.jax_numpy_rank_promotion == "warn" else "warn"
    with (
        warnings.catch_warnings(),
        jax.numpy_rank_promotion(other),
        attribute(jax.lax, "scan", again),
    ):
        warnings.simplefilter("ignore")
        yield


def _users_line() -> int | None:
    """The innermost line of the user's code that is being run."""
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        file = frame.f_code.co_filename
        if not (is_library(file) or is_of_this_package(file)):
            return line
    return None
