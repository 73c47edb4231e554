"""A suite of programs for the devices of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tpunb.tpu.types import Accelerator, accelerator
from tpunb.verification.suite import NotRunError, Suite

AXIS = "replica"


class JaxSuite(Suite):
    """The programs of one group of claims about the devices of JAX."""

    @property
    def type(self) -> Accelerator:
        """The TPU type whose devices JAX should have.

        Raises:
            NotRunError: No type has this kind and number of devices.
        """
        tpu = accelerator(self.connection.tpu)
        if tpu.family == "generic":
            raise NotRunError("no TPU type has so many devices of this kind")
        return tpu

    @property
    def devices(self) -> list[Any]:
        """The devices of JAX."""
        return list(jax.devices())

    def mesh(self, *sizes: int) -> Any:
        """Return a mesh of all devices.

        Args:
            sizes: The sizes of its axes; by default one axis.
        """
        sizes = sizes or (len(self.devices),)
        names = (AXIS, *(f"axis {number}" for number in range(1, len(sizes))))
        return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))

    def cut(self, values: Any, spec: Any = None) -> Any:
        """Return an array whose rows are divided among the devices.

        Args:
            values: The array, as NumPy.
            spec: Another division.
        """
        spec = P(AXIS) if spec is None else spec
        return jax.device_put(np.asarray(values), NamedSharding(self.mesh(), spec))

    def on_each(self, function: Callable[[Any], Any], values: Any) -> np.ndarray:
        """Run a function on each device with its part of some rows, and concatenate the results."""
        inside = jax.shard_map(
            function, mesh=self.mesh(), in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
        )
        return np.asarray(jax.jit(inside)(self.cut(values)))

    def on_a_cpu(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what JAX computes on this machine's CPU.

        Raises:
            NotRunError: JAX has no CPU here.
        """
        try:
            host = jax.devices("cpu")[0]
        except RuntimeError as error:
            raise NotRunError("JAX has no CPU device here to compare with") from error
        with jax.default_device(host):
            return jax.tree.map(np.asarray, jax.jit(function)(*jax.device_put(args, host)))

    def need_verdicts(self) -> None:
        """Raise `NotRunError` where a virtual TPU runs programs without a verdict."""
        if self.is_virtual and (why := self.connection.judge.why_off):
            raise NotRunError(why)
