"""The facts about a traced call of a JAX function, which the checks look at."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.jax.checks.equations import Located, all_equations
from tpunb.jax.checks.flow import Flow, flow_of
from tpunb.jax.virtual.memory import LiveArray

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A traced call, before it runs.

    Attributes:
        name: The function's name.
        program: The closed jaxpr.
        devices: The number of devices that run it.
        shardings: The shardings of the arguments, as JAX lowers them; empty if not known.
        result_shardings: The same of the results.
        moved: The large arguments that each call copies from one device to several.
        name_of: Returns the user's name of an array, or an empty text.
        model: The Keras model whose step it is, or None.
        is_cell: Whether it is the cell of a `%%tpu_run`.
        is_step: Whether it may run many times.
    """

    name: str
    program: Any
    devices: int = 1
    shardings: Sequence[Any] = ()
    result_shardings: Sequence[Any] = ()
    moved: Sequence[LiveArray] = ()
    name_of: Callable[[Any], str] = lambda _: ""
    model: Any = None
    is_cell: bool = False
    is_step: bool = True

    def mean(self, value: str, axis: str) -> str:
        """Return the code that averages a value over a mesh axis."""
        return (
            f'ctx.all_reduce("mean", {value})'
            if self.is_cell
            else f"jax.lax.pmean({value}, {axis})"
        )

    @functools.cached_property
    def equations(self) -> list[Located]:
        """The equations of the program and of the programs in it."""
        return list(all_equations(self.program.jaxpr))

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether the program has a matrix product or a convolution."""
        return any(each.equation.primitive.name in _PRODUCTS for each in self.equations)

    @functools.cached_property
    def flows(self) -> list[Flow]:
        """What each `jax.shard_map` of the program does with its values."""
        maps = (each for each in self.equations if each.equation.primitive.name == "shard_map")
        return [flow_of(each.equation) for each in maps]
