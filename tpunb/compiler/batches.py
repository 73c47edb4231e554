"""A function with other batches than its own: the largest that fits, or one that fits at all."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb._util.units import byte_count, grouped
from tpunb.compiler import jax_functions
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.topologies import Target, cores_of, target
from tpunb.compiler.verdict import Settings
from tpunb.tpu.types import accelerator_types
from tpunb.virtual.import_tensorflow import needing_tensorflow
from tpunb.virtual.keras_internals import blocks_of, model_of
from tpunb.virtual.patch.patch_tools import attribute

_TRIES = 3
_DIVIDED_BY_ANY_MESH = 1 << 14


def lowering(fn: Any, args: Sequence[Any], strategy: Any) -> tuple[Callable[..., Any], Any]:
    """Return how a function, JAX's or TensorFlow's, is lowered, and on whose replicas it runs."""
    if jax_functions.takes(fn, args):
        return jax_functions.function_for, None
    with needing_tensorflow():
        from tpunb.compiler.prepare import function_for
        from tpunb.virtual.keras_models import strategy_of
        from tpunb.virtual.strategy import current
    strategy = strategy or current()
    if strategy is None and (model := model_of(fn)) is not None:
        strategy = strategy_of(model)
    return function_for, strategy


@dataclasses.dataclass(frozen=True)
class AnyBatch:
    """A function with any batch.

    Attributes:
        lower: Lowers it with given arguments.
        resized: Its arguments with a batch.
        before: The batch that they have; None where it is open.
        times: Their batch, in batches of a replica.
        replicas: How many replicas run a function of JAX, whose arguments say so; else None.
    """

    lower: Callable[[Sequence[Any], Settings], Any]
    resized: Callable[[int], Sequence[Any]]
    before: int | None
    times: int
    replicas: int | None = None

    def on(self, kind: Target, per_replica: int, settings: Settings) -> TpuProgram:
        """Compiles it for a TPU type, with a batch of each replica."""
        arguments = self.resized(per_replica * self.times)
        program: TpuProgram = self.lower(arguments, settings).on(kind, settings)
        return program


def with_any_batch(fn: Any, args: Sequence[Any], strategy: Any, kind: Target) -> AnyBatch:
    """A function whose batch can be changed; see `tpunb.largest_batch` for what the batch is.

    Raises:
        CompileError: None of the arguments has a batch.
    """
    lower, strategy = lowering(fn, args, strategy)

    def lowered(arguments: Sequence[Any], settings: Settings) -> Any:
        return lower(fn, arguments, strategy, settings)

    # A model takes its global batch, a replica function that of a replica.
    whole = model_of(fn) is not None
    if jax_functions.takes(fn, args):  # JAX's take the batch of all devices
        before, resized = jax_functions.any_batch(fn, args)
        sized = args if before else resized(_DIVIDED_BY_ANY_MESH)
        cores = kind.replicas if whole else jax_functions.devices_of(fn, sized)
        return AnyBatch(lowered, resized, before, cores, cores)
    size = _batch_of(args)
    times = cores_of(strategy)[0] if whole else 1
    return AnyBatch(lowered, functools.partial(_with_batch, args, size), size, times)


def would_fit(
    batches: Callable[[], AnyBatch],
    program: TpuProgram,
    kind: Target,
    how: Settings,
    models: Sequence[Any] = (),
) -> str:
    """Compile alternatives to a program that does not fit; return sentences on those that do.

    They are a smaller batch; for a global batch, the same on more cores; and for models the same
    with their blocks computed again for the gradient.

    Args:
        batches: Makes the function with any batch.
        program: The program.
        kind: What it was compiled for.
        how: How.
        models: The Keras models in it.
    """
    settings = dataclasses.replace(how, speed=False, details=False)
    found = []
    try:
        made = batches()
        if made.before is None:
            return ""
        own = made.before // made.times
        for size in _smaller(own, program):
            settings.progress(f"trying a batch of {grouped(size)} a replica on {kind.tpu.name}")
            smaller = made.on(kind, size, settings)
            if smaller.ok and smaller.memory:
                takes = byte_count(smaller.memory.peak)
                batch = f"{grouped(size)} a replica"
                if program.examples:
                    batch = f"{grouped(size * kind.replicas)} ({batch})"
                elif made.replicas is not None:  # the batch of all devices, in a function of JAX
                    each = f" ({grouped(size)} a core)" if made.replicas > 1 else ""
                    batch = f"{grouped(size * made.replicas)}{each}"
                found.append(f"A batch of {batch} fits: {takes} a core.")
                break
        else:
            size = 0
        if size and program.examples and (larger := _larger(kind, program.examples, size)):
            found += _on(larger, made, program.examples, settings)
        found += _computed_again(kind, made, own, models, settings)
    except Exception:  # of the function with another batch: its own verdict stands
        logging.getLogger("tpunb.compiler").debug("no other batch", exc_info=True)
    return " ".join(found)


def _computed_again(
    kind: Target, batches: AnyBatch, per_replica: int, models: Sequence[Any], settings: Settings
) -> Iterator[str]:
    """The sentence that the batch fits if blocks are computed again, if it does."""
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
            program = batches.on(kind, per_replica, settings)
    except Exception:  # such as one of Keras's, of a block with random numbers
        logging.getLogger("tpunb.compiler").debug("not computed again", exc_info=True)
        return
    if program.ok and program.memory:
        names = [block.name for block in blocks]
        listed = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
        yield (
            f"The same batch fits if keras.remat computes {listed} again for the gradient: "
            f"{byte_count(program.memory.peak)} a core."
        )


def _smaller(batch: int, program: TpuProgram) -> Iterator[int]:
    """Halves of a batch, from the first that may fit if memory is proportional to the batch."""
    over = program.memory.fraction if program.memory else 1.0
    size, tries = batch // 2, 0
    while size and tries < _TRIES:
        if size * over <= batch:
            yield size
            tries += 1
        size //= 2


def _larger(kind: Target, examples: int, per_replica: int) -> Target | None:
    """The smallest type of the same family on which a replica has so small a part of a batch."""
    for name in accelerator_types():
        family, _, _ = name.partition("-")
        if family == kind.tpu.family:
            found = target(name, None, kind.partitions)
            if found.replicas * per_replica >= examples and examples % found.replicas == 0:
                return found
    return None


def _on(kind: Target, batches: AnyBatch, examples: int, settings: Settings) -> Iterator[str]:
    """The sentence that a global batch fits on a larger type, if it does."""
    settings.progress(f"trying {kind.tpu.name}")
    if batches.replicas is not None:  # a model of JAX's takes the batch of all cores
        batches = dataclasses.replace(batches, times=kind.replicas)
    program = batches.on(kind, examples // kind.replicas, settings)
    if program.ok and program.memory:
        takes = byte_count(program.memory.peak)
        yield f"{grouped(examples)} fit on a {kind.tpu.name}: {takes} a core."


def _batch_of(specs: Sequence[Any]) -> int | None:
    """The batch in the arguments; None where it is open."""
    import tensorflow as tf

    for value in tf.nest.flatten(_specs(specs)):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape):
            return None if shape[0] is None else int(shape[0])
    raise CompileError("None of the arguments has a batch.", fix="Pass a tf.TensorSpec([None, …]).")


def _with_batch(specs: Sequence[Any], before: int | None, size: int) -> list[Any]:
    """The arguments with another batch."""
    import tensorflow as tf

    def resized(value: Any) -> Any:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None or not len(shape) or shape[0] != before:
            return value
        return tf.TensorSpec([size, *shape[1:]], dtype)

    return list(tf.nest.map_structure(resized, _specs(specs)))


def _specs(specs: Sequence[Any]) -> list[Any]:
    """A dataset as its elements are."""
    if len(specs) == 1 and hasattr(specs[0], "element_spec"):
        spec = specs[0].element_spec
        return list(spec) if isinstance(spec, tuple) else [spec]
    return list(specs)
