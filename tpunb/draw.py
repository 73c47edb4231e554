"""Drawings of what happens on a TPU: its chip, its links, a batch, a sharding, a collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tpunb.display.drawing import Drawing
from tpunb.errors import TpunbError

__all__ = ["batch", "chip", "collective", "sends", "sharding", "tiles"]


def collective(
    operation: str,
    values: Any,
    *,
    reduction: str | None = None,
    axis: int | None = None,
    concat_axis: int | None = None,
    pairs: Iterable[tuple[int, int]] | None = None,
    source: int | None = None,
) -> Drawing:
    """Draw what a collective does to the values of the cores: before, arrows, after.

    Example:
        >>> print(tpunb.draw.collective("all_gather", [10, 20]))
        All-gather over 2 cores
          Every core gets the values of all 2 cores, one after the other.
          core  before     after
          0     10      →  [10, 20]
          1     20      →  [10, 20]

    Args:
        operation: `"all_reduce"`, `"all_gather"`, `"reduce_scatter"`, `"all_to_all"`,
            `"ppermute"` or `"broadcast"`; or JAX's name, such as `"psum"`.
        values: The value of each core: a list, a per-replica value of a `%%tpu_run` cell, or an
            array of JAX that is cut over devices.
        reduction: `"sum"` (the default), `"mean"`, `"max"` or `"min"`, for `all_reduce` and
            `reduce_scatter`.
        axis: The axis along which `all_gather` concatenates, and `reduce_scatter` and
            `all_to_all` split; by default 0.
        concat_axis: The axis along which `all_to_all` concatenates; by default 0.
        pairs: For `ppermute`, pairs of a core that sends and a core that receives.
        source: For `broadcast`, the core that sends; by default core 0.

    Returns:
        The drawing. Its `description` has the values `before` and `after`.

    Raises:
        TpunbError: An argument does not fit the others.
    """
    from tpunb.display.describe.collective_effect import effect_of
    from tpunb.display.draw.pictures.collective import effect_html
    from tpunb.display.draw.pictures.collective_words import effect_text

    effect = effect_of(
        operation,
        _parts(values),
        reduction=reduction,
        axis=axis,
        concat_axis=concat_axis,
        pairs=pairs,
        source=source,
    )
    return Drawing(effect, effect_text, effect_html)


def _parts(value: Any) -> list[Any]:
    """Return the value of each core."""
    from tpunb.display.describe import jax_values, tensorflow_values

    parts = jax_values.parts_in_mesh_order(value)
    if parts is None or len(parts) < 2:
        parts = tensorflow_values.distributed_components(value)
    if parts is not None and len(parts) > 1:
        return list(map(tensorflow_values.read, parts))
    try:
        return list(value)
    except TypeError:
        raise TpunbError(
            f"There is a single value, {value!r}, and a collective needs one for each core.",
            fix="Give a list, such as [10, 20, 30, 40].",
        ) from None


def chip(tpu: str) -> Drawing:
    """Draw a chip of a TPU type: its matrix, vector and scalar units, its memory and its links.

    Example:
        >>> print(tpunb.draw.chip("v5e-8"))
        A chip of v5e-8
          It has 1 TensorCore. A program sees it as one core.
          ...

    Args:
        tpu: The type, such as `"v5e-8"`.

    Raises:
        AcceleratorTypeError: The type does not exist.
        TpunbError: It is only a number of cores.
    """
    from tpunb.display.draw.pictures.chip import chip_html, chip_text
    from tpunb.tpu.chip_parts import chip_of
    from tpunb.tpu.types import accelerator

    return Drawing(chip_of(accelerator(tpu)), chip_text, chip_html)


def batch(rows: int, tpu: str | int = "v5e-8", *, of: int | None = None) -> Drawing:
    """Draw which rows of a batch each core gets, with one replica on each core.

    Example:
        >>> print(tpunb.draw.batch(60, "v3-8", of=64))
        A batch of 60 rows on v3-8
          A full batch has 64 rows, and this last batch only 60: 7 cores with 8, 1 core with 4.
          ...

    Args:
        rows: The rows of the batch.
        tpu: The TPU type, or a number of cores.
        of: The rows of a full batch, if this is the smaller last batch of a dataset.

    Raises:
        AcceleratorTypeError: The type does not exist.
        TpunbError: A number of rows is wrong, or the TPU is too large for a picture.
    """
    from tpunb.display.describe.batch_shares import shares_of
    from tpunb.display.draw.pictures.batch import batch_html, batch_text
    from tpunb.tpu.types import accelerator

    return Drawing(shares_of(rows, accelerator(tpu), of), batch_text, batch_html)


def sharding(shape: Sequence[int], *specs: Any, mesh: Any, dtype: Any = "float32") -> Drawing:
    """Draw how an array is cut over a mesh, for each of several specs. No array is needed.

    Example:
        >>> print(tpunb.draw.sharding((4, 8), ("data",), mesh={"data": 2}))
        P('data')
        float32[4, 8] · 128 B · cut into 2 parts over data
          Mesh: data 2. In parentheses: the place on (data).
          Each of 2 devices holds 64 B, 1/2 of it.
          ...

        With JAX, pass specs such as ``P("data")``, and several of them to compare them.

    Args:
        shape: The shape of the array.
        *specs: Specs of JAX, or tuples with the same entries.
        mesh: The size of each mesh axis by name, or a mesh of JAX, with or without devices.
        dtype: The type of the elements.

    Raises:
        TpunbError: A spec does not fit the mesh or the shape.
    """
    from tpunb.display.describe.planned_placement import planned_placement, spec_text
    from tpunb.display.draw.pictures.specs import specs_html, specs_text

    if not specs:
        raise TpunbError("There is no spec.", fix='Such as P("data"), or ("data",) without JAX.')
    named = [(spec_text(spec), planned_placement(shape, spec, mesh, dtype)) for spec in specs]
    return Drawing(named, specs_text, specs_html)


def sends(tpu: str | int, pairs: Iterable[tuple[int, int]] | None = None) -> Drawing:
    """Draw sends between cores on the links of a TPU's mesh.

    Cores without a direct link are marked, with the cores that the way passes.

    Example:
        >>> print(tpunb.draw.sends("v5e-4"))
        A ring of the 4 cores of v5e-4
          0 → 1 → 3 → 2 → 0.
          Each core sends over one link, or inside its chip.

    Args:
        tpu: The TPU type, or a number of cores.
        pairs: Pairs of a core that sends and a core that receives. By default a ring of all cores
            in which each send uses one link; `description.pairs` has its pairs.

    Raises:
        AcceleratorTypeError: The type does not exist.
        TpunbError: The TPU is too large for a picture, has no ring, or lacks a core.
    """
    from tpunb.display.describe.sends import sends_on
    from tpunb.display.draw.pictures.sends import sends_html, sends_text
    from tpunb.tpu.types import accelerator

    return Drawing(sends_on(accelerator(tpu), pairs), sends_text, sends_html)


def tiles(rows: int, columns: int) -> Drawing:
    """Draw the tiles in which a core stores a matrix of 32-bit numbers, with their padding.

    The compiler may also store a matrix transposed: `tiles(columns, rows)`.

    Example:
        >>> print(tpunb.draw.tiles(20, 130))
        A matrix of 20 × 130 numbers in tiles of 8 × 128
          It takes 6 tiles, 24 × 256 numbers: 2.36 times its size. The rest is padding.

    Args:
        rows: The rows of the matrix.
        columns: The columns of the matrix.

    Raises:
        TpunbError: A side is not a number, is less than 5, or is too large for a picture.
    """
    from tpunb.display.describe.tiles import tiles_of
    from tpunb.display.draw.pictures.tiles import tiles_html, tiles_text

    return Drawing(tiles_of(rows, columns), tiles_text, tiles_html)
