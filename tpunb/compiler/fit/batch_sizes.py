"""A function with other batches than its own, and the largest batch that fits."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpunb import framework
from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb._util.tables import escaped
from tpunb._util.units import grouped
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.partial_answers import CompilationStopped
from tpunb.compiler.ask.topologies import Target, names_of, targets
from tpunb.compiler.ask.verdict import reporting
from tpunb.compiler.fit.any_batch import AnyBatch, Lowerer
from tpunb.compiler.frameworks import chosen, with_named
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.machine.import_tensorflow import has_tensorflow
from tpunb.machine.keras_internals import backend_of, chooser


def lowerer_for(
    fn: Any, args: Sequence[Any], strategy: Any, named: Mapping[str, Any] | None = None
) -> Lowerer:
    """Return how a JAX or TensorFlow function is traced, and the strategy whose replicas run it."""
    _refuse_without_framework(fn)
    if strategy is None and sys.modules.get("tensorflow") is not None:
        strategy = framework.tensorflow().current_strategy()
    name, note = chosen(fn, args, strategy, named)
    if named:
        fn = with_named(fn, named, name)
    return framework.of(name).lowerer(fn, args, strategy, note)


def _refuse_without_framework(fn: Any) -> None:
    """Refuse a function that neither JAX nor TensorFlow could trace.

    Raises:
        CompileError: No framework could trace it.
    """
    backend = backend_of(fn)
    if backend not in {"jax", "tensorflow", ""}:
        raise CompileError(
            f"Keras runs on {backend}, but models are compiled for TPUs only with JAX or "
            "TensorFlow.",
            fix='Set os.environ["KERAS_BACKEND"] = "jax" before Keras is imported.',
        )
    if "jax" not in sys.modules and not has_tensorflow():
        raise CompileError(
            "JAX is not imported and TensorFlow is not installed: nothing can trace the function.",
            fix="Write the function with JAX: import jax, and use jax.numpy in it.",
        )


FINE = 32
"""Batches that differ by less than this fraction, 1/32, count as equal."""

MOST_TRIES = 12
"""The most sizes that a search tries."""

_LARGEST = 2**24
_FARTHEST = 16
_FIRST = 128
"""The batch of a replica to begin with if none is given."""

_FINEST = 256
"""`largest_batch` determines a batch to this fraction of itself, 1/256, or to its step."""

_ROUND = 128
"""The lanes of a TPU's registers and matrix units. Batches that are a multiple of it fill them."""


class Sizes:
    """A search for the largest batch of a replica that fits.

    Args:
        replicas: The number of replicas.
        attempt: Compiles with a given size.
        progress: Called with each next try.

    Attributes:
        note: Why a larger batch may fit; empty if none does.
        stopped: Whether an interrupt ended the search.
    """

    def __init__(
        self,
        replicas: int,
        attempt: Callable[[int], TpuProgram],
        progress: Callable[[str], None],
    ) -> None:
        self._replicas, self._attempt, self._progress = replicas, attempt, progress
        self._fits: dict[int, bool] = {}
        self.note, self.stopped = "", False

    @property
    def known(self) -> str:
        """The global batches that are known, as in "fits: 64; does not: 128"."""
        most = max((size for size, fits in self._fits.items() if fits), default=0)
        least = min((size for size, fits in self._fits.items() if not fits), default=0)
        fits = f"fits: {grouped(most * self._replicas)}" if most else ""
        does_not = "does not" if most else "does not fit"
        fails = f"{does_not}: {grouped(least * self._replicas)}" if least else ""
        return "; ".join(filter(None, [fits, fails]))

    def largest(self, first: int, available: int, *, fine: int, step: int) -> int:
        """Return the largest size that is found to fit; 0 if none is.

        Args:
            first: The size to begin with.
            available: The available bytes.
            fine: The answer is exact to this fraction of itself, or to a step.
            step: Every size is a multiple of it; 0 for a power of two, which takes fewer tries.

        Raises:
            KeyboardInterrupt: No size is known to fit.
        """
        try:
            if step:
                return search(self._tried, first, available, fine=fine, step=step)
            largest = quick_search(self._tried, first, available)
            self.note = _POWER_OF_TWO if largest else ""
        except KeyboardInterrupt:
            if not any(self._fits.values()):
                raise
            self.stopped = True
            self.note = (
                f"A larger batch may fit: the search was stopped. What is known: {self.known}."
            )
            largest = max(size for size, fits in self._fits.items() if fits)
        return largest

    def _tried(self, size: int) -> TpuProgram:
        known = self.known
        left = f" ({known}; at most {MOST_TRIES - len(self._fits)} tries left)" if known else ""
        batch = f"a batch of {grouped(size * self._replicas)}"
        self._progress(f"try {len(self._fits) + 1}: {batch}{left}")
        program = self._attempt(size)
        self._fits[size] = program.ok
        return program


_POWER_OF_TWO = "A larger batch may fit: the search was for the largest power of two of a replica."


def quick_search(attempt: Callable[[int], TpuProgram], first: int, available: int) -> int:
    """Find the largest power of two that fits: see `search`, which takes more tries."""
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = _power_of_two(first)
    while True:
        program = attempt(size)
        if program.memory is not None and program.memory.exact:
            peaks[size] = program.memory.peak
        low, high = (size, high) if program.ok else (low, size)
        if high <= max(2 * low, 1):
            return low
        middle = 2 * low if high == _LARGEST else math.isqrt(max(low, 1) * high)
        guess = _power_of_two(_guessed(peaks, available) or middle)
        farthest = _FARTHEST * low if high == _LARGEST and len(peaks) < 2 else high // 2
        size = max(min(guess, farthest, high // 2), 2 * low, 1)


def _power_of_two(size: int) -> int:
    """Return the largest power of two that is at most a size, and 1 for a smaller size."""
    return int(1 << max(size.bit_length() - 1, 0))


def search(
    attempt: Callable[[int], TpuProgram], first: int, available: int, *, fine: int, step: int = 1
) -> int:
    """Find the largest size that fits by trying a few sizes.

    Memory grows about linearly with a batch, so the peaks of two sizes say which size to try next.

    Args:
        attempt: Compiles with a given size.
        first: The size to begin with.
        available: The available bytes.
        fine: The answer is exact to this fraction of itself, or to a step.
        step: Every size is a multiple of it.

    Returns:
        The size, or 0 if no size fits.
    """
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = max(first // step, 1) * step
    retreat = 1
    for _ in range(MOST_TRIES):
        program = attempt(size)
        if program.memory is not None and program.memory.exact:
            peaks[size] = program.memory.peak
        low, high = (size, high) if program.ok else (low, size)
        unit = max(low // fine // step, 1) * step
        if high - low <= unit:
            break
        middle = 2 * low if high == _LARGEST else (low + high) // 2
        guess = (_guessed(peaks, available) or middle) // step * step
        # A guess beyond a size that does not fit is wrong: step back further each time.
        retreat = 1 if program.ok or guess < high else 4 * retreat
        farthest = max(high - retreat * unit, (low + high) // 2 // step * step)
        if high == _LARGEST and len(peaks) < 2:  # one size does not justify a long step
            farthest = _FARTHEST * low
        # If no larger size is expected to fit, show that the next one does not.
        size = max(min(guess, farthest), low + unit)
    return low


def _guessed(peaks: Mapping[int, int], available: int) -> int:
    """Return the size that fills the memory, extrapolated from the two nearest sizes, or 0.

    A single size gives a line through the origin. The result is 0 if no size does.
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
        tpu: The TPU type.
        per_replica: The examples of a replica; 0 if not even one fits.
        batch: The global batch.
        program: The program with this batch, or a program that does not fit if none does.
        tried: The batches of a replica that were compiled, with the peak in bytes per core
            if the compiler gave it, and whether they fit.
        note: Why a larger batch may fit; empty if none does.
    """

    tpu: str
    per_replica: int
    batch: int
    program: TpuProgram
    tried: tuple[tuple[int, int | None, bool], ...]
    note: str = ""

    @property
    def round(self) -> int:
        """A round global batch that fits too: a multiple of 128 per replica, or a power of two."""
        per_replica = self.per_replica // _ROUND * _ROUND
        if self.per_replica and not per_replica:
            per_replica = 2 ** (self.per_replica.bit_length() - 1)
        return per_replica * (self.batch // self.per_replica) if self.per_replica else 0

    def __str__(self) -> str:
        if not self.per_replica:
            return f"{self.program.label}: not even one example a replica fits."
        each = f"{grouped(self.batch)} examples, {grouped(self.per_replica)} a replica"
        rounded = "" if self.round == self.batch else f" A round batch is {grouped(self.round)}."
        note = f" {self.note}" if self.note else ""
        following = f" Next: batch({self.round}) in your dataset."
        return f"{self.program.label}: {each}.{note}{rounded}{following}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the sentence, and the program with its memory bar."""
        del include, exclude
        bundle = self.program._repr_mimebundle_()
        bundle["text/plain"] = f"{self}\n\n{bundle['text/plain']}"
        bundle["text/html"] = f"<div>{escaped(str(self))}</div>{bundle['text/html']}"
        return bundle


class SearchStopped(CompilationStopped):
    """An interrupt ended the search for the largest batch.

    Args:
        message: What is known.
        programs: The program with the largest batch that is known to fit, if one is.
        batches: The largest batches that are known to fit, one for each TPU type that was searched.

    Attributes:
        batches: The same.
    """

    def __init__(
        self, message: str, programs: TpuPrograms, batches: Sequence[LargestBatch] = ()
    ) -> None:
        super().__init__(message, programs)
        self.batches = tuple(batches)


@giving_back()
def largest_batch(
    fn: Any,
    *specs: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    step: int = 8,
    quick: bool = False,
    timeout: float = 300,
    progress: Callable[[str], None] | None = None,
) -> LargestBatch | tuple[LargestBatch, ...]:
    """Find the largest batch that fits in the memory of a TPU.

    The function is compiled with a few sizes. Memory grows almost in proportion to the batch, so
    each compilation tells which size to try next.

    Example:
        >>> import tensorflow as tf
        >>> def step(images):
        ...     return tf.reduce_sum(tf.nn.relu(images))
        >>> images = tf.TensorSpec([None, 224, 224, 3])
        >>> largest = tpunb.largest_batch(step, images, tpu="v5e-8", quick=True)
        >>> largest.per_replica >= 1024
        True

    Args:
        fn: A function or model, as for `tpunb.compile`.
        *specs: The function's arguments. The first size of the first tensor is the batch, and its
            value, which may be None, is where the search begins. Every tensor with the same first
            size is resized. In a JAX function, the batch is the first size of the last argument;
            other arguments with this first size in all their arrays are resized with it.
        tpu: A TPU type, or several. By default, the strategy's type.
        strategy: As for `tpunb.compile`.
        step: The batch of a replica is a multiple of `step`. It is exact to `step`, or to 1/256.
        quick: Whether a coarse answer is enough: the largest power of two that fits on a replica.
            It takes fewer tries, and `step` does not matter.
        timeout: Seconds that one batch may take.
        progress: Called with each next step. By default, a notebook's cell shows it.

    Returns:
        The batch, or one for each of several types.

    Raises:
        CompileError: The function does not compile for another reason than memory, or no
            argument has a batch.
        CompilerUnavailableError: The compiler is not installed.
        SearchStopped: An interrupt ended the search, and a batch is known to fit. The error's
            `batches` has it.
    """
    libtpu.start()
    how = lowerer_for(fn, specs, strategy)
    largest: list[LargestBatch] = []

    def settings() -> Settings:
        return Settings(chooser(fn), Deadline(timeout), details=False)

    with reporting(progress) as say:
        for kind in targets(names_of(tpu), how.strategy):
            batches = how.any_batch(kind, settings())
            try:
                largest.append(_largest(batches, kind, 0 if quick else step, settings, say))
            except SearchStopped as stopped:
                done = (*largest, *stopped.batches)
                programs = TpuPrograms([one.program for one in done])
                raise SearchStopped(str(stopped), programs, done) from None
    return largest[0] if tpu is None or isinstance(tpu, str) else tuple(largest)


def _largest(
    batches: AnyBatch,
    kind: Target,
    step: int,
    settings: Callable[[], Settings],
    progress: Callable[[str], None],
) -> LargestBatch:
    """Return the largest batch on a TPU type.

    Args:
        batches: The function with any batch.
        kind: The TPU type.
        step: The batch is a multiple of it; 0 for a power of two.
        settings: Gives each try its own time limit.
        progress: Called with each next try.

    Raises:
        SearchStopped: An interrupt ended the search, and a batch is known to fit.
    """
    if batches.replicas:
        kind = dataclasses.replace(kind, replicas=batches.replicas)
    programs: dict[int, TpuProgram] = {}

    def attempt(size: int) -> TpuProgram:
        program = programs[size] = batches.on(kind, size, settings())
        if program.unknown or any(error.code != "memory" for error in program.errors):
            program.raise_if_refused()
        return program

    first = _FIRST if batches.before is None else batches.before // batches.times
    sizes = Sizes(kind.replicas, attempt, progress)
    fitting = sizes.largest(max(first, step), kind.hardware.usable_bytes, fine=_FINEST, step=step)
    batch = fitting * kind.replicas
    program = programs[fitting or min(programs)]
    notes = (*program.notes, sizes.note) if sizes.note else program.notes
    program = dataclasses.replace(program, largest_batch=batch, notes=notes)
    tried = (
        (size, program.memory.peak if program.memory else None, program.ok)
        for size, program in sorted(programs.items())
    )
    largest = LargestBatch(kind.tpu.name, fitting, batch, program, tuple(tried), sizes.note)
    if sizes.stopped:
        message = f"while looking for the largest batch on {kind.tpu.name}: {sizes.known}."
        raise SearchStopped(message, TpuPrograms([program]), [largest])
    return largest
