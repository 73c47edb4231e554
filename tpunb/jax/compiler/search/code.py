"""The code that puts a call's arrays where a layout says, to paste."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb.jax.compiler.search.layouts import DATA, Axes, Layout


def code_of(layout: Layout, args: Sequence[Any], names: Sequence[str]) -> str:
    """Return the code that places the arguments of a call, as NamedShardings by path.

    Args:
        layout: The layout.
        args: The arguments.
        names: The names of the arguments, as the user's code has them.
    """
    jax: Any = sys.modules["jax"]
    paths = [
        [jax.tree_util.keystr((key,)) for key in path]
        for path, _ in jax.tree_util.tree_leaves_with_path(tuple(args))
    ]
    rules = _rules(paths, layout.axes)
    axis_names, sizes = zip(*layout.mesh, strict=True)
    types = f"(AxisType.Auto,) * {len(sizes)}"
    listed = ", ".join(names) + "," * (len(names) == 1)
    return "\n".join(
        [
            "import jax",
            "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P",
            "",
            f"mesh = jax.make_mesh({sizes!r}, {_tuple(axis_names)}, axis_types={types})",
            "specs = {  # by the end of an array's path; other arrays are the same on each core",
            *(f'    "{end}": P({_arguments(axes)}),' for end, axes in rules),
            "}",
            "",
            "def place(path, array):",
            "    ends = (end for end in specs if jax.tree_util.keystr(path).endswith(end))",
            "    spec = specs.get(next(ends, None), P())",
            "    return jax.device_put(array, NamedSharding(mesh, spec))",
            "",
            f"{listed} = jax.tree_util.tree_map_with_path(place, ({listed}))",
        ]
    )


def keras_code_of(layout: Layout, paths: Sequence[str], axes: Sequence[Axes]) -> str:
    """Return the code of a `keras.distribution.LayoutMap`.

    Its keys match a path from its end, in Keras 3.15, which compares whole paths, and before.

    Args:
        layout: The layout.
        paths: The paths of the model's weights. Its optimizer's variables follow them.
        axes: The axes of each weight.
    """
    numbered = [re.sub(r"\d+", "0", path) for path in paths]
    # Layers that are alike have one rule, unless their layouts differ.
    is_alike = len(set(numbered)) == len(set(zip(numbered, axes, strict=True)))
    split = [re.split(r"(?<=/)", path) for path in (numbered if is_alike else paths)]
    number = r"\\d+" if is_alike else r"\g<0>"
    rules = [(re.sub(r"\d+", number, re.escape(end)), own) for end, own in _rules(split, axes)]
    mesh = dict(layout.mesh) if DATA in dict(layout.mesh) else {DATA: 1, **dict(layout.mesh)}
    names, sizes = tuple(mesh), tuple(mesh.values())
    return "\n".join(
        [
            "import keras",
            "",
            f"mesh = keras.distribution.DeviceMesh({sizes!r}, {_tuple(names)})",
            "layout_map = keras.distribution.LayoutMap(mesh)",
            *(f'layout_map[r"(^|.*/){end}$"] = {_tuple(own)}' for end, own in rules),
            "keras.distribution.set_distribution(  # before the model is made",
            "    keras.distribution.ModelParallel(",
            f'        layout_map=layout_map, batch_dim_name="{DATA}"',
            "    )",
            ")",
        ]
    )


def _tuple(axes: Sequence[object]) -> str:
    return f"({_arguments(axes)}{',' * (len(axes) == 1)})"


def _arguments(axes: Sequence[object]) -> str:
    return ", ".join(map(repr, axes)).replace("'", '"')


def _rules(paths: Sequence[Sequence[str]], axes: Sequence[Axes]) -> Iterator[tuple[str, Axes]]:
    """Yield the shortest ends of paths that tell the arrays' axes, without arrays that are whole.

    No path has two of them: of two ends that tell the axes, only the shorter one is yielded.
    """
    of_end: dict[str, set[Axes]] = {}
    for path, own in zip(paths, axes, strict=True):
        for length in range(1, len(path) + 1):
            of_end.setdefault("".join(path[-length:]), set()).add(own)
    known = set()
    for path, own in zip(paths, axes, strict=True):
        ends = ("".join(path[-length:]) for length in range(1, len(path) + 1))
        end = next(end for end in ends if len(of_end[end]) == 1)
        if any(own) and end not in known:
            known.add(end)
            yield end, own
