"""`tpunb.search`: the layout of a JAX call that fits and is fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpunb import framework
from tpunb._util.freed_memory import giving_back
from tpunb.compiler.ask.topologies import names_of, targets
from tpunb.compiler.frameworks import chosen
from tpunb.compiler.program import CompileError
from tpunb.machine.framework import JAX

if TYPE_CHECKING:
    from tpunb.jax.compiler.search.found import Found


@giving_back()
def search(
    fn: Callable[..., Any],
    *args: Any,
    tpu: str | Sequence[str] | None = None,
    meshes: Sequence[Sequence[int] | Mapping[str, int]] | None = None,
    specs: str | Sequence[Any] = "auto",
    remat: bool | None = None,
    donate: bool | None = None,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Find the layout with which a JAX function fits on a TPU and is fastest.

    The TPU's compiler judges each layout: the own layout of the arguments, and others that are
    found from the operations of the function, such as data parallel, fully sharded, and columns of
    a weight before rows of the next. No TPU is needed, and nothing is run, except to compare the
    results of the best layout with those of the own one on a virtual TPU, if one is connected.

    Example:
        `tpunb.search(step, params, batch, tpu="v5e-8")` shows a table, a picture of time against
        memory, and the code that puts the arguments where the best layout says.

    Args:
        fn: A function of arrays, a `jax.jit` of one, or a compiled Keras model with the JAX
            backend, for its train step. If a function has a parameter `mesh`, it gets the mesh.
        *args: Its arguments: trees of arrays or of `jax.ShapeDtypeStruct`, the batch last; for a
            model only the batch. Their shardings are the own layout.
        tpu: A TPU type, or several. By default, the connected one.
        meshes: The meshes to try: the sizes of their axes, as in `[(8,), (4, 2)]`, or also their
            names, as in `[{"data": 4, "model": 2}]`. By default, all with one to three axes.
        specs: "auto", or the layouts to try on these meshes: for each a sequence with a
            `PartitionSpec`, or a tree of them, for each argument.
        remat: Whether to compute the bodies of scans again for the gradient; None to try it only
            if no layout fits.
        donate: Whether results may overwrite arguments; None to try it only if no layout fits.
        timeout: The time limit in seconds for the whole search. By default, 300 for each type.
        progress: Called with each next step. By default, a notebook's cell or a terminal shows it.

    Returns:
        The layouts with what the compiler says, and the best. A layout on which nothing is known
            in time is shown as such, and is never the best.

    Raises:
        CompilerUnavailableError: The compiler is not installed.
        CompileError: The function is not JAX's, or its layouts cannot be found.
        SearchStopped: An interrupt ended the search. Its `found` has what is known.
    """
    name, _ = chosen(fn, args)
    if name != JAX:
        raise CompileError(
            "tpunb.search searches layouts of JAX functions, and this one is TensorFlow's.",
            fix="For TensorFlow, tpunb.largest_batch finds the batch, and tpunb.compile(…, "
            "tpu=[…]) compares TPU types.",
        )
    kinds = targets(names_of(tpu))
    options = {"meshes": meshes, "specs": specs, "remat": remat, "donate": donate}
    limit = 300.0 * len(kinds) if timeout is None else timeout
    found: Found = framework.jax().search(fn, args, kinds, progress, timeout=limit, **options)
    return found
