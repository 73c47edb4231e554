"""The values of the cores before and after a collective, computed with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.errors import TpunbError, did_you_mean

Array = npt.NDArray[Any]

COMBINED, NOTHING = -1, -2
"""The origin of an element that several cores have made, and of the zeros where nothing arrives."""

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "ppermute",
    "broadcast",
)

_OTHER_NAMES = {
    "psum": ("all_reduce", "sum"),
    "pmean": ("all_reduce", "mean"),
    "pmax": ("all_reduce", "max"),
    "pmin": ("all_reduce", "min"),
    "psum_scatter": ("reduce_scatter", "sum"),
    "collective_permute": ("ppermute", ""),
    "collectivepermute": ("ppermute", ""),
}
"""The names of JAX, TensorFlow and XLA, with the reduction that they mean."""

_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda stack: np.add.reduce(stack, axis=0, dtype=stack.dtype),
    "mean": lambda stack: np.asarray(np.mean(stack, axis=0)),
    "max": lambda stack: np.maximum.reduce(stack, axis=0),
    "min": lambda stack: np.minimum.reduce(stack, axis=0),
}

_TAKES = {
    "all_reduce": ("reduction",),
    "all_gather": ("axis",),
    "reduce_scatter": ("reduction", "axis"),
    "all_to_all": ("axis", "concat_axis"),
    "ppermute": ("pairs",),
    "broadcast": ("source",),
}

MOST_CORES = 16
"""The most cores that a picture has room for."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The value of one core.

    Attributes:
        values: The elements.
        origins: For each element, the core that it comes from, or `COMBINED` or `NOTHING`.
    """

    values: Array
    origins: Array


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveEffect:
    """The values of the cores before and after a collective.

    Attributes:
        operation: One of `OPERATIONS`.
        reduction: `"sum"`, `"mean"`, `"max"` or `"min"`; empty if nothing is combined.
        before: The value of each core before.
        after: The value of each core afterwards.
        sends: Each core that sends, with the core that receives from it.
    """

    operation: str
    reduction: str
    before: tuple[Held, ...]
    after: tuple[Held, ...]
    sends: tuple[tuple[int, int], ...]


def effect_of(
    operation: str,
    values: Sequence[Any],
    *,
    reduction: str | None = None,
    axis: int | None = None,
    concat_axis: int | None = None,
    pairs: Iterable[tuple[int, int]] | None = None,
    source: int | None = None,
) -> CollectiveEffect:
    """Compute a collective.

    Args:
        operation: One of `OPERATIONS`, or the name of JAX such as `"psum"`.
        values: The value of each core.
        reduction: How `all_reduce` and `reduce_scatter` combine; by default `"sum"`.
        axis: The axis along which `all_gather` concatenates, and `reduce_scatter` and `all_to_all`
            split; by default 0.
        concat_axis: The axis along which `all_to_all` concatenates; by default the other axis's
            default, 0.
        pairs: For `ppermute`, each core that sends, with the core that receives.
        source: For `broadcast`, the core whose value all cores get; by default core 0.

    Raises:
        TpunbError: An argument is wrong, or does not fit the values.
    """
    name, implied = _known(operation)
    given = {
        "reduction": reduction,
        "axis": axis,
        "concat_axis": concat_axis,
        "pairs": pairs,
        "source": source,
    }
    _refuse_unused(name, {key for key, value in given.items() if value is not None})
    arrays = _arrays(values)
    compute = _Computing(name, arrays, _reduction(name, implied, reduction))
    after, origins = compute.results(axis or 0, concat_axis or 0, pairs, source or 0)
    before = [Held(array, np.full(array.shape, core)) for core, array in enumerate(arrays)]
    return CollectiveEffect(
        name, compute.reduction, tuple(before), tuple(map(Held, after, origins)), compute.sends
    )


def _known(operation: Any) -> tuple[str, str]:
    """Return a collective's name, and the reduction that the given name means."""
    text = str(operation).lower().replace("-", "_")
    if text in OPERATIONS:
        return text, ""
    if text in _OTHER_NAMES:
        return _OTHER_NAMES[text]
    choices = (*OPERATIONS, *_OTHER_NAMES)
    raise TpunbError(
        f"There is no collective {operation!r}.",
        fix=did_you_mean(text, choices, f"Choose one of {', '.join(OPERATIONS)}."),
    )


def _refuse_unused(name: str, given: set[str]) -> None:
    if unused := given - set(_TAKES[name]):
        raise TpunbError(
            f"`{name}` does not take {' and '.join(sorted(f'`{each}`' for each in unused))}.",
            fix=f"It takes {' and '.join(f'`{each}`' for each in _TAKES[name])}.",
        )
    if name == "ppermute" and "pairs" not in given:
        raise TpunbError(
            "`ppermute` needs to know which core sends to which core.",
            fix="Give it `pairs`, such as pairs=[(0, 1), (1, 2), (2, 3), (3, 0)].",
        )


def _reduction(name: str, implied: str, given: str | None) -> str:
    if "reduction" not in _TAKES[name]:
        return ""
    wanted = given or implied or "sum"
    if implied and wanted != implied:
        raise TpunbError(
            f"The name you gave means the {implied}, and `reduction` is {given!r}.",
            fix=f"Use `{name}`, or leave `reduction` out.",
        )
    if not isinstance(wanted, str) or wanted not in _REDUCTIONS:
        raise TpunbError(
            f"A collective cannot combine by {wanted!r}.", fix='Use "sum", "mean", "max" or "min".'
        )
    return wanted


def _arrays(values: Sequence[Any]) -> list[Array]:
    """Return the value of each core as an array."""
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:
        raise _not_numbers("A value") from None
    if not 2 <= len(arrays) <= MOST_CORES:
        raise TpunbError(
            f"A picture shows 2 to {MOST_CORES} cores, and there are values for {len(arrays)}.",
            fix="Give a list with a value for each core.",
        )
    for core, array in enumerate(arrays):
        if array.dtype.kind in "OSUMm":
            raise _not_numbers(f"The value of core {core}")
    return arrays


def _not_numbers(what: str) -> TpunbError:
    return TpunbError(
        f"{what} is not an array of numbers.",
        fix="Give numbers, or arrays that all have the same shape.",
    )


class _Computing:
    """One collective on arrays.

    Args:
        name: One of `OPERATIONS`.
        arrays: The value of each core.
        reduction: How values are combined; empty if nothing is combined.
    """

    def __init__(self, name: str, arrays: list[Array], reduction: str) -> None:
        self.name, self.arrays, self.reduction = name, arrays, reduction
        self.cores = len(arrays)
        self.sends = tuple((a, b) for a in range(self.cores) for b in range(self.cores))

    def results(
        self, axis: int, concat_axis: int, pairs: Iterable[tuple[int, int]] | None, source: int
    ) -> tuple[list[Array], list[Array]]:
        """Return each core's result, and the origins of its elements."""
        if self.name == "ppermute":
            return self._permuted(() if pairs is None else pairs)
        if self.name == "broadcast":
            return self._broadcast(source)
        if self.name == "all_gather":
            return self._gathered(axis)
        self._refuse_different_shapes()
        if self.name == "all_to_all":
            return self._exchanged(axis, concat_axis)
        return self._reduced(axis)

    def _reduced(self, axis: int) -> tuple[list[Array], list[Array]]:
        stack = np.stack(self.arrays)
        if stack.dtype.kind == "b" and self.reduction in ("sum", "mean"):
            raise TpunbError(
                f"The {self.reduction} of True and False is not defined.",
                fix="Convert the values to numbers first.",
            )
        if stack.dtype.kind == "c" and self.reduction in ("max", "min"):
            raise TpunbError(
                f"The {self.reduction} of complex numbers is not defined.",
                fix="Compare their real parts or their absolute values.",
            )
        with np.errstate(over="ignore", invalid="ignore"):  # a TPU says nothing either
            whole = _REDUCTIONS[self.reduction](stack)
        if self.name == "all_reduce":
            parts = [whole] * self.cores
        else:
            parts = np.split(whole, self.cores, self._divisible(axis))
        return parts, [np.full(part.shape, COMBINED) for part in parts]

    def _gathered(self, axis: int) -> tuple[list[Array], list[Array]]:
        arrays = [np.atleast_1d(array) for array in self.arrays]
        along = self._axis(arrays[0], axis)
        shapes = {array.shape[:along] + array.shape[along + 1 :] for array in arrays}
        if len(shapes) > 1 or len({array.ndim for array in arrays}) > 1:
            self._refuse_different_shapes()
        origins = [np.full(array.shape, core) for core, array in enumerate(arrays)]
        whole, where = np.concatenate(arrays, along), np.concatenate(origins, along)
        return [whole] * self.cores, [where] * self.cores

    def _exchanged(self, axis: int, concat_axis: int) -> tuple[list[Array], list[Array]]:
        split, joined = self._divisible(axis), self._axis(self.arrays[0], concat_axis)
        pieces = [np.split(array, self.cores, split) for array in self.arrays]
        origins = [[np.full(piece.shape, core) for piece in own] for core, own in enumerate(pieces)]

        def to(target: int, parts: list[list[Array]]) -> Array:
            return np.concatenate([own[target] for own in parts], joined)

        targets = range(self.cores)
        return [to(core, pieces) for core in targets], [to(core, origins) for core in targets]

    def _permuted(self, pairs: Iterable[Any]) -> tuple[list[Array], list[Array]]:
        self._refuse_different_shapes()
        self.sends = self._pairs(pairs)
        results = [np.zeros_like(array) for array in self.arrays]
        origins = [np.full(array.shape, NOTHING) for array in self.arrays]
        for source, target in self.sends:
            results[target] = self.arrays[source]
            origins[target] = np.full(self.arrays[source].shape, source)
        return results, origins

    def _broadcast(self, source: int) -> tuple[list[Array], list[Array]]:
        self._refuse_different_shapes()
        core = self._core(source)
        self.sends = tuple((core, target) for target in range(self.cores))
        array = self.arrays[core]
        return [array] * self.cores, [np.full(array.shape, core)] * self.cores

    def _pairs(self, pairs: Iterable[Any]) -> tuple[tuple[int, int], ...]:
        try:
            found = [(self._core(source), self._core(target)) for source, target in pairs]
        except (TypeError, ValueError):
            raise TpunbError(
                "`pairs` is a list of pairs, each a core that sends and a core that receives.",
                fix="Such as pairs=[(0, 1), (1, 2), (2, 3), (3, 0)].",
            ) from None
        for ends, does in ((0, "sends to"), (1, "receives from")):
            cores = [pair[ends] for pair in found]
            twice = next((core for core in cores if cores.count(core) > 1), None)
            if twice is not None:
                raise TpunbError(
                    f"Core {twice} {does} several cores.",
                    fix="In `ppermute`, a core sends to one core at most, and receives from one.",
                )
        return tuple(found)

    def _core(self, number: Any) -> int:
        known = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not known or not 0 <= number < self.cores:
            raise TpunbError(f"There is no core {number!r}.", fix=f"Choose 0 to {self.cores - 1}.")
        return int(number)

    def _divisible(self, axis: int) -> int:
        """Return an axis that can be split into a part for each core."""
        along = self._axis(self.arrays[0], axis)
        size = self.arrays[0].shape[along]
        if size % self.cores:
            raise TpunbError(
                f"`{self.name}` splits axis {axis} into {self.cores} equal parts, and its size is "
                f"{size}.",
                fix=f"Give values whose axis {axis} has {self.cores} elements, or a multiple.",
            )
        return along

    def _axis(self, array: Array, axis: Any) -> int:
        rank = array.ndim
        if rank == 0:
            raise TpunbError(
                f"`{self.name}` works along an axis, and a single number has none.",
                fix=f"Give each core an array, such as [1, 2] for 2 cores; here {self.cores}.",
            )
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise TpunbError(
                f"The values have no axis {axis!r}: their shape is {array.shape}.",
                fix=f"Choose an axis from {-rank} to {rank - 1}.",
            )
        return axis % rank

    def _refuse_different_shapes(self) -> None:
        for core, array in enumerate(self.arrays):
            first = self.arrays[0]
            if array.shape != first.shape:
                raise TpunbError(
                    f"Core {core} has an array of shape {array.shape}, and core 0 has "
                    f"{first.shape}.",
                    fix=f"`{self.name}` needs the same shape on all cores.",
                )
