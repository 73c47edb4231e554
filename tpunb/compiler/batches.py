"""A function with other batches than its own: the largest that fits, or one that fits at all."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb._util.tables import escaped
from tpunb._util.units import byte_count, grouped
from tpunb.compiler import jax_functions, libtpu
from tpunb.compiler.computed_again import with_keras_remat
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.topologies import Target, cores_of, family_of, targets
from tpunb.compiler.verdict import Settings, told
from tpunb.virtual.import_tensorflow import needing_tensorflow
from tpunb.virtual.keras_internals import chooser, model_of

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
        found += with_keras_remat(lambda: made.on(kind, own, settings), models, kind, settings)
    except Exception:  # of the function with another batch: its own verdict stands
        logging.getLogger("tpunb.compiler").debug("no other batch", exc_info=True)
    return " ".join(found)


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
    fits = (
        found
        for found in family_of(kind)
        if found.replicas * per_replica >= examples and examples % found.replicas == 0
    )
    return next(fits, None)


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


FINE = 32
"""Batches are told apart to this part of themselves: 1/32."""

_MOST_TRIES = 12
_LARGEST = 2**24
_FARTHEST = 16
_FIRST = 128
"""The batch of a replica to begin with where none is given."""

_FINEST = 256
"""To such a part of itself a batch is exact that `largest_batch` finds, or to its step."""

_ROUND = 128
"""Lanes of a TPU's registers and matrix units: batches that are a multiple of it fill them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A batch size that was tried, and its outcome.

    Attributes:
        fits: Whether it fits.
        peak: Bytes that it takes; None where that is not known.
    """

    fits: bool
    peak: int | None


def search(
    attempt: Callable[[int], Tried], first: int, available: int, *, step: int = 1, fine: int = 0
) -> int:
    """Finds the largest size that fits, by trying some.

    Memory grows about linearly with a batch: what two sizes take says where to look next.

    Args:
        attempt: Tries a size.
        first: The size to begin with.
        available: Bytes that there are.
        step: Sizes are multiples of it.
        fine: Where it is given, the answer is exact to this part of itself only.

    Returns:
        The size, exact to a step or to its part; 0 where nothing fits.
    """
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = max(first // step, 1) * step
    retreat = 1
    for _ in range(_MOST_TRIES):
        found = attempt(size)
        if found.peak is not None:
            peaks[size] = found.peak
        low, high = (size, high) if found.fits else (low, size)
        unit = max(low // fine // step, 1) * step if fine else step
        if high - low <= unit:
            break
        guess = (_guessed(peaks, available) or _middle(low, high)) // step * step
        # Lines that lead beyond what does not fit are wrong: each one goes further back.
        retreat = 1 if found.fits or guess < high else 4 * retreat
        farthest = max(high - retreat * unit, (low + high) // 2 // step * step)
        if high == _LARGEST and len(peaks) < 2:  # a line through one size does not lead far
            farthest = _FARTHEST * low
        # Where no more is to be expected, show that one more does not fit.
        size = max(min(guess, farthest), low + unit)
    return low


def _middle(low: int, high: int) -> int:
    return (low + high) // 2 if high < _LARGEST else 2 * low


def _guessed(peaks: Mapping[int, int], available: int) -> int:
    """Extrapolate the two nearest sizes to the size that fills the memory; 0 if that is impossible.

    With a single size, a line through the origin.
    """
    near = sorted(peaks, key=lambda size: abs(peaks[size] - available))[:2]
    if not near:
        return 0
    small, large = (0, *near) if len(near) == 1 else sorted(near)
    slope = (peaks[large] - peaks.get(small, 0)) / (large - small)
    return large + int((available - peaks[large]) // slope) if slope > 0 else 0


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a TPU type that fits.

    Attributes:
        tpu: The type.
        per_replica: Examples of a replica; 0 where not one fits.
        batch: The global batch.
        program: What it compiles to; of one that does not fit where none does.
        tried: The batches of a replica that were compiled, with the peak in bytes a core
            where the compiler gave it, and whether they fit.
    """

    tpu: str
    per_replica: int
    batch: int
    program: TpuProgram
    tried: tuple[tuple[int, int | None, bool], ...]

    @property
    def round(self) -> int:
        """A round global batch that fits too: a multiple of 128 a replica, or a power of two."""
        per_replica = self.per_replica // _ROUND * _ROUND
        if self.per_replica and not per_replica:
            per_replica = 2 ** (self.per_replica.bit_length() - 1)
        return per_replica * (self.batch // self.per_replica) if self.per_replica else 0

    def __str__(self) -> str:
        if not self.per_replica:
            return f"{self.tpu}: not even one example a replica fits."
        each = f"{grouped(self.batch)} examples, {grouped(self.per_replica)} a replica"
        round_one = "" if self.round == self.batch else f" A round batch is {grouped(self.round)}."
        return f"{self.tpu}: {each}.{round_one} Next: batch({self.round}) in your dataset."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The sentence, and the program with the bar of its memory."""
        del include, exclude
        bundle = self.program._repr_mimebundle_()
        bundle["text/plain"] = f"{self}\n\n{bundle['text/plain']}"
        bundle["text/html"] = f"<div>{escaped(str(self))}</div>{bundle['text/html']}"
        return bundle


@giving_back()
def largest_batch(
    fn: Any,
    *specs: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    step: int = 8,
    timeout: float = 300,
    progress: Callable[[str], None] | None = None,
) -> LargestBatch | tuple[LargestBatch, ...]:
    """Finds the largest batch that fits into the memory of a TPU.

    The function is compiled with a few sizes: memory grows almost in proportion to the
    batch, so that each compilation tells which size to try next.

    Args:
        fn: What `tpunb.compile` takes.
        *specs: Its arguments; the first size of each tensor with the same first size as
            the first of them is the batch, and its value where the search begins. It may
            be None. Of a function of JAX the batch is the first size of its last argument;
            what else has it in all its arrays is resized with it.
        tpu: A TPU type, or several; by default the strategy's.
        strategy: As for `tpunb.compile`.
        step: The batch of a replica is a multiple of it; it is exact to that, or to a 256th.
        timeout: Seconds that one batch may take.
        progress: Is called with what is done next; by default a notebook's cell shows it.

    Returns:
        The batch; for several types one of each.

    Raises:
        CompileError: It does not compile for another reason than memory, or no argument
            has a batch.
        CompilerUnavailableError: The compiler is not installed.
    """
    libtpu.start()
    _, replicated = lowering(fn, specs, strategy)
    with told(progress) as say:
        found = []
        for kind in targets(tpu, replicated):
            batches = with_any_batch(fn, specs, strategy, kind)
            if batches.replicas:
                kind = dataclasses.replace(kind, replicas=batches.replicas)

            def compiled(size: int, kind: Target = kind, batches: AnyBatch = batches) -> TpuProgram:
                settings = Settings(chooser(fn), Deadline(timeout), details=False)
                return batches.on(kind, size, settings)

            first = _FIRST if batches.before is None else batches.before // batches.times
            found.append(_largest(compiled, kind, max(first, step), step, say))
    return found[0] if tpu is None or isinstance(tpu, str) else tuple(found)


def _largest(
    compiled: Callable[[int], TpuProgram],
    kind: Target,
    first: int,
    step: int,
    progress: Callable[[str], None],
) -> LargestBatch:
    """The largest batch of a replica that fits on a TPU type."""
    tried: dict[int, TpuProgram] = {}

    def attempt(size: int) -> Tried:
        number = len(tried) + 1
        progress(f"try {number}: a batch of {grouped(size)} a replica on {kind.tpu.name}")
        program = tried[size] = compiled(size)
        if program.unknown or any(error.code != "memory" for error in program.errors):
            program.raise_if_refused()
        exact = program.memory is not None and program.memory.exact
        return Tried(program.ok, program.memory.peak if program.memory and exact else None)

    good = search(attempt, first, kind.hardware.usable_bytes, step=step, fine=_FINEST)
    batch = good * kind.replicas
    return LargestBatch(
        kind.tpu.name,
        good,
        batch,
        dataclasses.replace(tried[good or min(tried)], largest_batch=batch),
        tuple(
            (size, one.memory.peak if one.memory else None, one.ok)
            for size, one in sorted(tried.items())
        ),
    )
