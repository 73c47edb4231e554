"""Claims about collectives of JAX, written by hand and in cells."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.jax_suite import AXIS, JaxSuite
from tpunb.verification.suite import Outcome, close


class Collectives(JaxSuite):
    """Claims about collectives inside `jax.shard_map`: device k has the number k + 1."""

    group = "JAX collectives"

    def psum(self) -> Outcome:
        """Check that `psum` adds up the numbers of all devices."""
        return self._everywhere(self.ranks.sum(), lambda x: jax.lax.psum(x, AXIS))

    def pmean(self) -> Outcome:
        """Check that `pmean` is the mean of the numbers."""
        return self._everywhere(self.ranks.mean(), lambda x: jax.lax.pmean(x, AXIS))

    def pmax(self) -> Outcome:
        """Check that `pmax` is the largest number."""
        return self._everywhere(self.ranks.max(), lambda x: jax.lax.pmax(x, AXIS))

    def psum_of_bfloat16(self) -> Outcome:
        """Check that `psum` adds up numbers of bfloat16."""

        def total(x: Any) -> Any:
            return jax.lax.psum(x.astype("bfloat16"), AXIS).astype("float32")

        return self._everywhere(self.ranks.sum(), total, 1e-2)

    def all_gather(self) -> Outcome:
        """Check that `all_gather` lists the numbers in the order of the mesh."""
        found = self.on_each(lambda x: jax.lax.all_gather(x, AXIS, tiled=True)[None], self.ranks)
        return close(self.everywhere(self.ranks), found)

    def psum_scatter(self) -> Outcome:
        """Check that `psum_scatter` gives each device its part of the sum."""
        count = self.replicas
        rows = np.arange(count * count, dtype=np.float32).reshape(count, count)

        def scattered(row: Any) -> Any:
            return jax.lax.psum_scatter(row[0], AXIS, tiled=True)

        return close(rows.sum(0), self.on_each(scattered, rows))

    def all_to_all(self) -> Outcome:
        """Check that `all_to_all` transposes the rows of the devices."""
        count = self.replicas
        rows = np.arange(count * count, dtype=np.float32).reshape(count, count)

        def turned(row: Any) -> Any:
            return jax.lax.all_to_all(row, AXIS, 1, 1, tiled=True)

        return close(rows.T, self.on_each(turned, rows))

    def ppermute(self) -> Outcome:
        """Check that `ppermute` sends each number to the next device."""
        self.need_replicas()
        count = self.replicas
        pairs = [(source, (source + 1) % count) for source in range(count)]
        found = self.on_each(lambda x: jax.lax.ppermute(x, AXIS, pairs), self.ranks)
        return close(np.roll(self.ranks, 1), found)

    def ppermute_to_some(self) -> Outcome:
        """Check that devices that get nothing from `ppermute` have zeros."""
        self.need_replicas()
        found = self.on_each(lambda x: jax.lax.ppermute(x, AXIS, [(0, 1)]), self.ranks)
        expected = np.zeros(self.replicas)
        expected[1] = 1.0
        return close(expected, found)

    def axis_index(self) -> Outcome:
        """Check that `axis_index` counts the devices in the order of the mesh."""
        found = self.on_each(lambda x: x * 0 + jax.lax.axis_index(AXIS), self.ranks)
        return close(np.arange(self.replicas), found)

    def gradient(self) -> Outcome:
        """Check that the gradient of a sum over the devices reaches each of them."""

        def slope(x: Any) -> Any:
            return jax.grad(lambda x: jnp.sum(jax.lax.pmean(x**2, AXIS)))(x)

        # Without varying types, each device's loss counts: the mean's 1/n and n losses.
        return close(2 * self.ranks, self.on_each(slope, self.ranks), self.tolerance())

    def a_sharded_sum(self) -> Outcome:
        """Check that the compiler adds the collective to a sum over a sharded axis."""
        rows = np.arange(8.0 * self.replicas, dtype=np.float32).reshape(-1, 4)
        found = jax.jit(lambda x: x.sum(0))(self.cut(rows))
        return close(rows.sum(0), np.asarray(found), self.tolerance())

    def a_cell(self) -> Outcome:
        """Check that a cell of `%%tpu_run` has the numbers and collectives of its devices."""
        source = (
            "total = ctx.all_reduce('sum', x)\n"
            "listed = ctx.all_gather(x)\n"
            "mine = 1.0 * replica_id + num_replicas\n"
        )
        names: dict[str, Any] = {"x": self.cut(self.ranks)}
        self.connection.run_cell(source, names)
        values = [np.ravel(part) for part in _parts(names["total"], self.replicas)]
        listed = [np.ravel(part) for part in _parts(names["listed"], self.replicas)]
        mine = np.ravel(_parts(names["mine"], self.replicas))
        found = [np.concatenate([*values, *listed, mine])]
        total = self.everywhere(self.ranks.sum())
        everybody = self.everywhere(self.ranks).ravel()
        expected = np.concatenate([total, everybody, np.arange(self.replicas) + self.replicas])
        return close([expected], found)

    def _everywhere(self, expected: Any, function: Any, tolerance: float = 0.0) -> Outcome:
        found = self.on_each(function, self.ranks)
        return close(self.everywhere(expected), found, tolerance or self.tolerance())


def _parts(value: Any, count: int) -> list[np.ndarray]:
    """Return each device's value of a name that a cell assigned."""
    values = value.values if hasattr(value, "values") else [value] * count
    return [np.asarray(part) for part in values]
