"""The checks of a layout: axes of a mesh that nothing uses, and arrays that others leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.units import byte_count
from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.dimensions import Dimensions, axes_in, names_in
from tpunb.jax.checks.equations import bytes_of
from tpunb.jax.checks.shared_work import TARGETS, may_cut

_LEAST = 2**20
"""The bytes from which an array is worth a sentence."""

_SHARE = 0.01
"""The same as a share of all arguments."""


def unused_axes(call: Call) -> Iterator[Problem]:
    """Yield the axes of the mesh along which a program's cores compute the same products."""
    specs = _specs(call)
    if not any(bytes_of(variable.aval) >= _LEAST for variable in call.program.jaxpr.invars):
        return
    if specs is None or not any(map(axes_in, specs)):  # `repeated_work` says that nothing is cut
        return
    used = set().union(*map(axes_in, specs))
    for each in call.equations:
        if each.equation.primitive.name == "shard_map":
            return
        targets = (each.equation.params.get(name) for name in TARGETS)
        used |= set().union(*(axes_in(getattr(to, "spec", None) or ()) for to in targets))
    axes = _mesh(call).shape.items() if call.multiplies else ()
    for axis, cores in axes:
        if cores > 1 and axis not in used:
            yield Problem(
                "unused-axis",
                f"No array of {call.name} is sharded along the mesh's axis {axis!r}: its {cores} "
                "cores compute the same.",
                "Name it in the spec of a weight or of the batch, or make the mesh without it.",
            )


def left_whole(call: Call) -> Iterator[Problem]:
    """Yield the large array that is whole where an array with the same dimension is sharded.

    XLA gathers one of them, or each core computes with the whole array. One is named: its
    neighbours have the same cause.
    """
    variables = call.program.jaxpr.invars
    specs = (_specs(call) or [])[: len(call.shardings)]
    used = set().union(*map(axes_in, specs))
    avals = [variable.aval for variable in variables]
    least = max(_LEAST, _SHARE * sum(map(bytes_of, avals)))
    large = [place for place, aval in enumerate(avals) if bytes_of(aval) >= least]
    if len(specs) != len(avals) or all(used <= axes_in(specs[place]) for place in large):
        return
    groups = Dimensions(call.program.jaxpr).arguments
    sharded = {
        (axis, group): place
        for place, spec in enumerate(specs)
        for axes, group in zip(spec, groups[place], strict=False)
        for axis in names_in(axes)
    }
    names = getattr(call.program.jaxpr.debug_info, "arg_names", None) or [""] * len(avals)
    for place in large:
        for axis in sorted(used - axes_in(specs[place])):
            cores = _mesh(call).shape[axis]
            for dim, group in enumerate(groups[place]):
                neighbour = sharded.get((axis, group))
                if neighbour is None or avals[place].shape[dim] % cores:
                    continue
                size = byte_count(bytes_of(avals[place]))
                yield Problem(
                    "left-whole",
                    f"`{names[place]}` ({size}) is whole on each of the {cores} cores along "
                    f"{axis!r}, and `{names[neighbour]}`, which has the same dimension, is sharded "
                    "along it.",
                    f"Name {axis!r} at dimension {dim} in the spec of `{names[place]}`.",
                )
                return


def _mesh(call: Call) -> Any:
    shardings = (*call.shardings, *call.result_shardings)
    return next(each.mesh for each in shardings if hasattr(each, "mesh"))


def _specs(call: Call) -> list[Sequence[Any]] | None:
    """Return the specs of the arguments and of the results; None if they are not all known.

    XLA chooses where none is given. It shards nothing along an axis that no array names.
    """
    specs: list[Sequence[Any]] = []
    meshes = set()
    for each in (*call.shardings, *call.result_shardings):
        if hasattr(each, "mesh") and hasattr(each, "spec"):
            specs.append(each.spec)
            meshes.add(tuple(each.mesh.shape.items()))
        elif may_cut(each):
            return None
        else:
            specs.append(())
    return specs if len(meshes) == 1 else None
