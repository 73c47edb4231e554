"""Replica functions for batches of any size, joined: written for some sizes, which tell the rest.

To join values their sizes have to be known, and those of a batch may be known only when it is
there. Written out for batches of several sizes a function differs in integers alone: in shapes
and in what follows from them. Where each of these is linear in the size of a replica's part it
is calculated when the function runs, from what it is for two sizes; the others are the proof.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tpunb.virtual._tensorflow import FuncGraph
from tpunb.virtual.graph.nodes import argument_name, new_name
from tpunb.virtual.graph.static_tensors import KnownSizes, known_sizes
from tpunb.virtual.replicate.expand import Arguments, Expansion, ReplicaFunction, expand
from tpunb.virtual.replicate.inferred_sizes import (
    inferred_sizes,
    sizes_in,
    with_plain_arithmetic,
)
from tpunb.virtual.replicate.joining import Joining
from tpunb.virtual.replicate.merged_sizes import merged

__all__ = ["FunctionOfAnySize", "of_any_size", "sample_sizes"]


def sample_sizes(taken: Collection[int]) -> tuple[int, ...]:
    """The sizes for which a function is written: two that follow each other, a small and a large.

    What is linear from the small one to the large one, and for the two between them, is neither
    cut off somewhere (`x[:100]`) nor a remainder: that of the second is one more, or none.

    Args:
        taken: Numbers that stand for something else, and which a size could be taken for.
    """
    small = next(size for size in range(2, 60) if size not in taken)
    middle = next(n for n in range(60, 4000) if n not in taken and n + 1 not in taken)
    large = next(size for size in range(4099, 9000) if size not in taken)
    return middle, middle + 1, small, large


@dataclasses.dataclass(frozen=True)
class FunctionOfAnySize(ReplicaFunction):
    """A replica function whose batches have a size that is known only when it runs.

    Attributes:
        samples: The sizes of its tensors for some sizes of a replica's part, in the order
            of `sample_sizes`.
        most: How many bytes the values of all replicas may take together.
        batch: An argument that has the parts of all replicas, stacked.
    """

    samples: Mapping[int, KnownSizes] = dataclasses.field(default_factory=dict)
    most: float = 0
    batch: str = ""

    def expand(
        self,
        arguments: Arguments,
        *,
        name: str | None = None,
        prefix: str | None = None,
        assume_equal: bool = True,
    ) -> Expansion:
        """Writes the function out for all replicas.

        Returns:
            What is right for the sizes that it names, or for any if nothing can be joined.
        """
        name = name or new_name(self.definition, self.cores)
        written = self._of_samples(arguments, name, prefix, assume_equal=assume_equal)
        if written is None:
            return expand(self, arguments, name=name, prefix=prefix, assume_equal=assume_equal)
        return written

    def _of_samples(
        self, arguments: Arguments, name: str, prefix: str | None, *, assume_equal: bool
    ) -> Expansion | None:
        only: Collection[str] | None = None
        samples: dict[int, Expansion] = {}
        for size, sizes in self.samples.items():
            one = ReplicaFunction(
                self.definition,
                self.library,
                self.cores,
                unit=self.unit,
                joining=Joining(sizes, np.inf, only),
            )
            made = expand(one, arguments, name=name, prefix=prefix, assume_equal=assume_equal)
            only = made.joined
            samples[size] = made
            first = next(iter(samples.values()))
            if not only or _apart_from_nodes(made) != _apart_from_nodes(first):
                return None
        return self._merged(samples)

    def _merged(self, samples: Mapping[int, Expansion]) -> Expansion | None:
        """One function for all sizes; None if it would differ in more than integers."""
        first = next(iter(samples.values()))
        definitions = {size: made.definition for size, made in samples.items()}
        small, large = min(samples), max(samples)
        each = first.bytes / next(iter(samples))
        most = large if each == 0 else int(min(large, self.most / each))
        sizes = range(small, most + 1)
        definition = merged(definitions, argument_name(self.batch))
        if definition is None or not sizes:
            return None
        return dataclasses.replace(first, definition=definition, sizes=sizes)


def of_any_size(
    function: ReplicaFunction, graph: FuncGraph, batches: Sequence[str], most: float
) -> FunctionOfAnySize | None:
    """A replica function that is joined, for batches whose size is known when it runs.

    Args:
        function: The function.
        graph: The same as it was traced.
        batches: Its arguments whose first axis has the size.
        most: How many bytes joined values may take together.

    Returns:
        The function; None if it is not for each of the sizes that are tried.
    """
    samples: dict[int, KnownSizes] = {}
    definition = with_plain_arithmetic(function.definition, known_sizes(graph, function.definition))
    for size in sample_sizes(sizes_in(graph)):
        sizes = inferred_sizes(graph, definition, batches, size)
        if sizes is None:
            return None
        samples[size] = sizes
    if not _are_linear(samples):
        return None
    known = {one.name: getattr(function, one.name) for one in dataclasses.fields(function)}
    return FunctionOfAnySize(**known, samples=samples, most=most, batch=batches[0])


def _are_linear(samples: Mapping[int, KnownSizes]) -> bool:
    """Whether the size of each axis of every tensor is linear in that of a replica's part.

    Each operation makes its result's sizes of those it takes. Where these are linear, and the
    result is for all samples, it is for sizes between them: what cuts off a slice, rounds a
    number of strides or takes the smaller of two sizes shows at one of the samples.
    """
    (first, *_), (one, other, *_) = samples, samples.values()
    for key in set.intersection(*map(set, samples.values())):
        line = [(a, b - a) for a, b in zip(one[key], other[key], strict=False)]
        for size, sizes in samples.items():
            if sizes[key] != tuple(at + (size - first) * slope for at, slope in line):
                return False
    return True


def _apart_from_nodes(made: Expansion) -> Expansion:
    """What has to be the same for all sizes."""
    return dataclasses.replace(made, definition=made.definition.signature, bytes=0)
