"""The layouts of a JAX call's arrays on the cores of a TPU that are worth a try.

A layout says along which axis of a mesh each dimension of an array is sharded. The batch is sharded
along the axis "data". Along the axis "model", whole groups of dimensions are sharded: the columns
of a weight and the rows of the next, as in Megatron-LM (https://arxiv.org/abs/1909.08053). Weights
may also be sharded along "data" or "fsdp", and are gathered before their use (ZeRO, FSDP:
https://arxiv.org/abs/1910.02054). The optimizer's state is sharded as its weights are.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.compiler.frameworks import arrays_in
from tpunb.compiler.program import CompileError
from tpunb.jax.checks.dimensions import Dimensions, axes_in, names_in
from tpunb.jax.compiler.batches import any_batch
from tpunb.jax.compiler.functions import bytes_of, first_place, traced_call

DATA, FSDP, MODEL = "data", "fsdp", "model"

_MOST_SETS = 3
"""The most ways in which the groups of dimensions along "model" are chosen."""

_SMALL = 2**16
"""A weight of fewer elements is whole along "data" and "fsdp": gathering it saves no memory."""

_MOST_NAMES = 4

Axes = tuple[str | tuple[str, ...] | None, ...]
"""The mesh's axes of each dimension of an array, as in a `PartitionSpec`."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the arrays of a call lie on a mesh.

    Attributes:
        name: What a person calls it: `"data parallel"`.
        mesh: The names and sizes of the mesh's axes.
        axes: The axes of each array of the call, in the order of the tree's leaves.
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    axes: tuple[Axes, ...]

    @property
    def shape(self) -> str:
        """The mesh in words: `"data 4 × model 2"`."""
        return " × ".join(f"{name} {size}" for name, size in self.mesh)

    def abstract_mesh(self) -> Any:
        """Return the mesh, of absent cores. XLA chooses the shardings of what is computed."""
        sharding: Any = sys.modules["jax"].sharding
        names, sizes = zip(*self.mesh, strict=True)
        types = (sharding.AxisType.Auto,) * len(names)
        return sharding.AbstractMesh(sizes, names, axis_types=types)

    def applied(self, args: Sequence[Any], mesh: Any = None) -> list[Any]:
        """Return the shapes of a call's arrays, with their shardings. Other leaves are returned.

        Args:
            args: The arguments of the call.
            mesh: A mesh of devices with these axes; the default is a mesh of absent cores.
        """
        jax: Any = sys.modules["jax"]
        mesh = self.abstract_mesh() if mesh is None else mesh
        leaves, tree = jax.tree_util.tree_flatten(list(args))

        def placed(leaf: Any, axes: Axes) -> Any:
            if not hasattr(leaf, "dtype"):
                return leaf
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
            return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)

        shapes = [placed(leaf, axes) for leaf, axes in zip(leaves, self.axes, strict=True)]
        return list(tree.unflatten(shapes))

    def bytes_per_core(self, args: Sequence[Any]) -> int:
        """Return the bytes of a call's arrays on a core: the program takes at least as many."""
        sizes = dict(self.mesh)
        return sum(
            bytes_of([leaf]) // math.prod(sizes[axis] for axis in axes_in(axes))
            for leaf, axes in zip(arrays_in(list(args)), self.axes, strict=True)
            if hasattr(leaf, "dtype")
        )


def own_layout(args: Sequence[Any]) -> Layout | None:
    """Return the layout that a call's arrays have; None if they are on no mesh."""
    jax: Any = sys.modules["jax"]
    leaves = arrays_in(list(args))
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    named = [each for each in shardings if isinstance(each, jax.sharding.NamedSharding)]
    if not named:
        return None
    axes = tuple(tuple(getattr(each, "spec", ())) for each in shardings)
    return Layout("your own", tuple(named[0].mesh.shape.items()), axes)


def layout_of(args: Sequence[Any], mesh: Mapping[str, int], specs: Sequence[Any]) -> Layout:
    """Return a user's layout.

    Args:
        args: The arguments of the call.
        mesh: The names and sizes of the mesh's axes.
        specs: For each argument a tree of `PartitionSpec`s, or one for all its arrays.
    """
    jax: Any = sys.modules["jax"]
    axes: list[Axes] = []

    def spread(spec: Any, arrays: Any) -> None:
        axes.extend(tuple(spec) for _ in arrays_in(arrays))

    jax.tree_util.tree_map(
        spread,
        list(specs),
        list(args),
        is_leaf=lambda each: isinstance(each, jax.sharding.PartitionSpec),
    )
    return Layout("given", tuple(mesh.items()), tuple(axes))


def layouts(
    fn: Any,
    args: Sequence[Any],
    cores: int,
    *,
    most_axes: int = 3,
    names: Sequence[str] = (),
) -> Iterator[Layout]:
    """Yield the layouts of a call on a number of cores, without equal ones.

    Args:
        fn: The function.
        args: Its arguments: arrays or their shapes. Their own shardings do not matter.
        cores: The cores of the TPU.
        most_axes: The most axes of a mesh.
        names: The names of the first arrays; by default, their paths in the arguments.

    Raises:
        CompileError: No argument has a batch, or an argument is not an array.
        Exception: The function raises this error when it is traced.
    """
    call = _Call(fn, args, names)
    known = set()
    for sizes in _factorings(cores, most_axes):
        for names in _AXES[len(sizes)]:
            mesh = dict(zip(names, sizes, strict=True))
            for layout in call.on(mesh):
                if (placement := _placement(layout)) not in known:
                    known.add(placement)
                    yield layout


_AXES: dict[int, tuple[tuple[str, ...], ...]] = {
    1: ((DATA,), (MODEL,)),
    2: ((DATA, MODEL), (DATA, FSDP)),
    3: ((DATA, FSDP, MODEL),),
}
"""The names of a mesh's axes by their number."""


def _factorings(cores: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of meshes with up to `most` axes, each of two cores or more.

    >>> list(_factorings(8, 2))
    [(8,), (2, 4), (4, 2)]
    """
    if cores > 1:
        yield (cores,)
    for first in range(2, cores // 2 + 1):
        if cores % first == 0 and most > 1:
            for rest in _factorings(cores // first, most - 1):
                yield (first, *rest)


def _placement(layout: Layout) -> Any:
    """Return what is equal for layouts that cut all arrays alike, whatever the axes are called."""
    used = set().union(*map(axes_in, layout.axes))
    kept = [(name, size) for name, size in layout.mesh if name in used]
    places = {name: place for place, (name, _) in enumerate(kept)}
    cuts = tuple(
        tuple(tuple(places[name] for name in names_in(each)) for each in axes)
        for axes in layout.axes
    )
    return tuple(size for _, size in kept), cuts


class _Call:
    """A traced call, whose arrays are placed on meshes.

    Args:
        fn: The function.
        args: Its arguments.
        names: The names of the first arrays.
    """

    def __init__(self, fn: Any, args: Sequence[Any], names: Sequence[str]) -> None:
        jax: Any = sys.modules["jax"]
        paths = jax.tree_util.tree_leaves_with_path(list(args))
        self._leaves = [leaf for _, leaf in paths]
        known = [*names, *(jax.tree_util.keystr(path[1:]) for path, _ in paths[len(names) :])]
        self._names = list(map(_name_of, known))
        traced = traced_call(fn, args)
        self._dims = Dimensions(traced.jaxpr.jaxpr)
        start = first_place(traced, args)
        self._groups = self._dims.arguments[start : start + len(self._leaves)]
        if [np.ndim(leaf) for leaf in self._leaves] != list(map(len, self._groups)):
            raise CompileError(
                "Only a function of arrays has layouts.",
                fix="Bind the other arguments: functools.partial(step, name=value).",
            )
        self._batch = self._groups_of_batch(fn, args)
        self._weights = [
            place
            for place, groups in enumerate(self._groups)
            if groups and not self._batch & {*groups}
        ]

    def _groups_of_batch(self, fn: Any, args: Sequence[Any]) -> set[int]:
        before, resized = any_batch(fn, args)
        larger = arrays_in(resized(2 * (before or 1)))
        leaves = zip(self._leaves, larger, self._groups, strict=True)
        return {groups[0] for old, new, groups in leaves if np.shape(old) != np.shape(new)}

    def on(self, mesh: Mapping[str, int]) -> Iterator[Layout]:
        """Yield the layouts on a mesh."""
        weights_along = [FSDP] if FSDP in mesh else ["", DATA] if DATA in mesh else [""]
        for chosen in self._sets(mesh[MODEL]) if MODEL in mesh else [frozenset[int]()]:
            for along in weights_along:
                axes = [
                    self._axes(place, mesh, chosen, along) for place in range(len(self._leaves))
                ]
                name = self._name(axes, along, is_hybrid=FSDP in mesh)
                yield Layout(name, tuple(mesh.items()), tuple(axes))

    def _sets(self, cores: int) -> list[frozenset[int]]:
        """Return sets of groups that can be sharded together: no weight has two of them.

        The first shards the most numbers of weights.
        """
        with_group: dict[int, set[int]] = {}
        for place in self._weights:
            for group in self._groups[place]:
                if group not in self._dims.scanned and self._dims.divisor(group) % cores == 0:
                    with_group.setdefault(group, set()).add(place)

        def cut(groups: Iterable[int]) -> int:
            places = set().union(*(with_group[group] for group in groups))
            return sum(math.prod(np.shape(self._leaves[place])) for place in places)

        largest_first = sorted(with_group, key=lambda group: -cut([group]))
        found = []
        for start in largest_first:
            chosen = [start]
            for group in largest_first:
                if not any(with_group[group] & with_group[other] for other in chosen):
                    chosen.append(group)
            found += [frozenset(chosen), frozenset(chosen) - self._dims.looked_up]
        distinct = [each for each in dict.fromkeys(found) if each]
        return sorted(distinct, key=cut, reverse=True)[:_MOST_SETS]

    def _axes(
        self, place: int, mesh: Mapping[str, int], chosen: Collection[int], along: str
    ) -> Axes:
        """Return the axes of an array.

        Args:
            place: The array's place among the leaves.
            mesh: The mesh.
            chosen: The groups that are sharded along "model".
            along: The axis along which weights are sharded; empty for none.
        """
        sizes, groups = np.shape(self._leaves[place]), self._groups[place]
        axes: list[str | tuple[str, ...] | None] = [None] * len(sizes)
        free = list(range(len(sizes)))

        def shard(dims: Iterable[int], names: Sequence[str]) -> None:
            cores = math.prod(mesh[name] for name in names)
            dim = next((dim for dim in dims if sizes[dim] and sizes[dim] % cores == 0), None)
            if names and dim is not None:
                axes[dim] = names[0] if len(names) == 1 else tuple(names)
                free.remove(dim)

        batch = [dim for dim in free if groups[dim] in self._batch]
        shard(batch[:1], [name for name in (DATA, FSDP) if name in mesh])
        shard([dim for dim in reversed(free) if groups[dim] in chosen], [MODEL] if chosen else [])
        if along and place in self._weights and math.prod(sizes) >= _SMALL:
            inside = [dim for dim in free if groups[dim] not in self._dims.scanned]
            shard(sorted(inside, key=lambda dim: -sizes[dim]), [along])
        while axes and axes[-1] is None:
            axes.pop()
        return tuple(axes)

    def _name(self, axes: Sequence[Axes], along: str, *, is_hybrid: bool) -> str:
        used = set().union(*map(axes_in, axes))
        kinds = []
        if along in used:
            kinds.append("fully sharded in groups" if is_hybrid else "fully sharded")
        elif DATA in used:
            kinds.append("data parallel")
        if MODEL in used:
            cut = [self._names[place] for place, each in enumerate(axes) if MODEL in each]
            names = list(dict.fromkeys(filter(None, cut)))
            shown = ", ".join([*names[:_MOST_NAMES], *["…"][: len(names) > _MOST_NAMES]])
            kinds.append(f"tensor parallel ({shown})")
        return " and ".join(kinds) or "the same on each core"


def _name_of(path: str) -> str:
    """Return the last two parts of a path, such as a layer and its weight; empty for an argument.

    >>> _name_of("['layers']['w1']"), _name_of(".attention.out.kernel.value")
    ('layers/w1', 'out/kernel')
    """
    return "/".join(re.findall(r"\w+", path.removesuffix(".value"))[-2:])
