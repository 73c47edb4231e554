"""The largest batch that fits, by compiling few times."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb._util.units import grouped
from tpunb.compiler import jax_functions, libtpu
from tpunb.compiler.compile import lowering
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.progress import told
from tpunb.compiler.topologies import Target, cores_of, targets
from tpunb.compiler.verdict import Settings
from tpunb.virtual.keras_internals import is_model
from tpunb.virtual.strict.diagnostics import chooser

FINE = 32
"""Batches are told apart to this part of themselves: 1/32."""

_MOST_TRIES = 12
_LARGEST = 2**24
_FARTHEST = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """What became of a size.

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
    for _ in range(_MOST_TRIES):
        found = attempt(size)
        if found.peak is not None:
            peaks[size] = found.peak
        low, high = (size, high) if found.fits else (low, size)
        unit = max(low // fine // step, 1) * step if fine else step
        if high - low <= unit:
            break
        guess = _guessed(peaks, available) or _middle(low, high)
        size = _between(low, high, guess // step * step, unit)
    return low


def _between(low: int, high: int, guess: int, unit: int) -> int:
    """What to try next between what fits and what does not."""
    if guess <= low:  # what fits may be the answer: show that more does not
        return low + unit
    farthest = high - unit if high < _LARGEST else _FARTHEST * low
    return max(min(guess, farthest), low + unit)


def _middle(low: int, high: int) -> int:
    return (low + high) // 2 if high < _LARGEST else 2 * low


def _guessed(peaks: Mapping[int, int], available: int) -> int:
    """Where the line through the two sizes nearest to it reaches what there is; or 0.

    Of a single size, the line from nothing.
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

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows."""
        printer.text("LargestBatch(...)" if cycle else str(self))

    def __str__(self) -> str:
        if not self.per_replica:
            return f"{self.tpu}: not even one example a replica fits."
        return f"{self.tpu}: {grouped(self.batch)} examples, {grouped(self.per_replica)} a replica."


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
        step: The batch of a replica is a multiple of it.
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
    jax = jax_functions.takes(fn, specs)
    lower, strategy = lowering(fn, specs, strategy)
    kinds = targets(tpu, strategy)
    # A model takes its global batch, a replica function that of a replica.
    whole = is_model(fn) or is_model(getattr(fn, "__self__", None))
    traced_on = cores_of(strategy)[0] if whole else 1
    with told(progress) as say:

        def compiled(kind: Target, args: Sequence[Any]) -> TpuProgram:
            settings = Settings(chooser(fn), Deadline(timeout), details=False)
            program: TpuProgram = lower(fn, args, strategy, settings).on(kind, settings)
            return program

        found = []
        before: int | None
        for kind in kinds:
            if jax:  # JAX's take the batch of all devices
                cores = kind.replicas if whole else jax_functions.devices_of(fn, specs)
                kind = dataclasses.replace(kind, replicas=cores)
                before, resized = jax_functions.any_batch(fn, specs)
            else:
                cores, before = traced_on, _batch_of(specs)
                resized = functools.partial(_with_batch, specs, before)
            sizes = _Sizes(compiled, resized, before, say, cores)
            found.append(sizes.largest(kind, step))
    return found[0] if tpu is None or isinstance(tpu, str) else tuple(found)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """A function with any batch.

    Attributes:
        compiled: Compiles it for a TPU type with these arguments.
        resized: Its arguments with a batch.
        before: The batch to begin with; None where it is open.
        progress: Is called with what is done next.
        times: The batch of its arguments, in batches of a replica.
    """

    compiled: Callable[[Target, Sequence[Any]], TpuProgram]
    resized: Callable[[int], Sequence[Any]]
    before: int | None
    progress: Callable[[str], None]
    times: int

    def largest(self, kind: Target, step: int) -> LargestBatch:
        """The largest batch of a replica that fits on a TPU type."""
        tried: dict[int, TpuProgram] = {}

        def attempt(size: int) -> Tried:
            program = tried[size] = self._compiled(size, kind)
            exact = program.memory is not None and program.memory.exact
            return Tried(program.ok, program.memory.peak if program.memory and exact else None)

        first = (self.before or step * self.times) // self.times
        good = search(attempt, first, kind.hardware.usable_bytes, step=step)
        program = tried[good or min(tried)]
        batch = good * kind.replicas
        return LargestBatch(
            kind.tpu.name,
            good,
            batch,
            dataclasses.replace(program, largest_batch=batch),
            tuple(
                (size, one.memory.peak if one.memory else None, one.ok)
                for size, one in sorted(tried.items())
            ),
        )

    def _compiled(self, size: int, kind: Target) -> TpuProgram:
        self.progress(f"a batch of {grouped(size)} a replica on {kind.tpu.name}")
        program = self.compiled(kind, self.resized(size * self.times))
        if program.unknown or any(error.code != "memory" for error in program.errors):
            program.raise_if_refused()
        return program


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
