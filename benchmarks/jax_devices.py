"""A virtual TPU for JAX, against JAX's own CPU device in the same process.

``python -m benchmarks.jax_devices`` prints JSON: the seconds of each case, ours and the peer's.
It runs in a Python with JAX.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

CALLS = 2000
TURNS = 15
LAYERS = range(4, 4 + TURNS)
STEPS = 1000
STEP_TURNS = 5

STEP = """
def loss_of(params):
    hidden = batch
    for weight in params:
        hidden = jnp.tanh(hidden @ weight)
    return ctx.all_reduce("mean", jnp.mean(hidden**2))

loss, gradients = jax.value_and_grad(loss_of)(params)
params = [value - 0.1 * gradient for value, gradient in zip(params, gradients)]
"""


def main() -> None:
    """Measure all cases."""
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TPUNB_VERDICTS"] = folder
        found = {**_connecting(), **_calls(), **_steps(), "kept": _kept()}
    print(json.dumps(found))


def _connecting() -> dict[str, list[float]]:
    """Measure connecting after JAX has started."""
    import jax

    import tpunb

    jax.devices()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        connection = tpunb.connect(simulate="v5e-8", framework="jax", judge="off")
        jax.devices()
        times.append(time.perf_counter() - begin)
        connection.close()
    return {"connect": times}


def _calls() -> dict[str, list[float]]:
    """Measure first and later calls on a virtual device and on the host, in turns."""
    import jax
    import jax.numpy as jnp

    import tpunb

    with tpunb.connect(simulate="v5e-8", framework="jax", judge="off"):
        sides = {"ours": jax.devices()[0], "peer": jax.devices("cpu")[0]}
        x = {side: jax.device_put(jnp.ones((64, 64)), device) for side, device in sides.items()}
        found: dict[str, list[float]] = {}
        for layers in LAYERS:
            for side in sides:
                call = jax.jit(_network(layers, side))
                first = _seconds(lambda call=call, side=side: call(x[side]).block_until_ready())
                found.setdefault(f"first {side}", []).append(first)
        increment = jax.jit(lambda x: x + 1)
        for _ in range(TURNS):
            for side in sides:
                small = x[side][0]
                increment(small)

                def many(small: Any = small) -> None:
                    for _ in range(CALLS):
                        increment(small)

                found.setdefault(f"later {side}", []).append(_seconds(many) / CALLS)
    return found


def _steps() -> dict[str, list[float]]:
    """Measure a step of `%%tpu_run` with a curve, and the same loop written by hand, in turns."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import tpunb

    found: dict[str, list[float]] = {"steps ours": [], "steps peer": []}
    with tpunb.connect(simulate="v5e-8", framework="jax", judge="off") as connection:
        params = [jnp.full((64, 64), 0.01) for _ in range(4)]
        batch = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        names = {"jax": jax, "jnp": jnp, "params": params}
        by_hand = _by_hand(connection.cells.mesh, params, batch)
        for turn in range(STEP_TURNS + 1):
            run = connection.cells.steps(STEP, names, data=[batch] * STEPS, plot=("loss",))
            begin = time.perf_counter()
            run.go()
            jax.block_until_ready(run.assigned["params"])
            seconds = time.perf_counter() - begin
            if turn:  # the first one compiles
                found["steps ours"].append(seconds / STEPS)
                found["steps peer"].append(_seconds(by_hand) / STEPS)
            else:
                by_hand()
    return found


def _by_hand(mesh: Any, params: Any, batch: Any) -> Callable[[], None]:
    """Return the loop of `STEP` as a user writes it for speed."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def step(params: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            hidden = batch
            for weight in params:
                hidden = jnp.tanh(hidden @ weight)
            return jax.lax.pmean(jnp.mean(hidden**2), "replica")

        loss, gradients = jax.value_and_grad(loss_of)(params)
        return [v - 0.1 * g for v, g in zip(params, gradients, strict=True)], loss

    specs = {"in_specs": (P(), P("replica")), "out_specs": P()}
    call = jax.jit(jax.shard_map(step, mesh=mesh, **specs), donate_argnums=0)
    parts = NamedSharding(mesh, P("replica"))

    def loop() -> None:
        present = jax.device_put([jnp.copy(each) for each in params], NamedSharding(mesh, P()))
        losses = []
        for _ in range(STEPS):
            present, loss = call(present, jax.device_put(batch, parts))
            losses.append(loss)
        jax.block_until_ready((present, losses))

    return loop


def _kept() -> list[float]:
    """Measure finding verdicts that an earlier connection has kept."""
    import jax
    import jax.numpy as jnp

    import tpunb
    from tpunb.jax.compiler.judge import Judge

    times: list[float] = []
    find = Judge._verdict_on

    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        verdict = find(*args)
        times.append(time.perf_counter() - begin)
        return verdict

    Judge._verdict_on = timed  # type: ignore[method-assign]
    for _ in range(2):
        times.clear()
        with tpunb.connect(simulate="v5e-8", framework="jax"):
            for layers in range(1, 6):
                jax.jit(_network(layers, "kept"))(jnp.ones((64, 64)))
    return times[1:]  # the first starts the compiler's process, to ask for its releases


def _network(layers: int, name: str) -> Callable[[Any], Any]:
    """Return a function that no other call has compiled."""
    import jax.numpy as jnp

    def network(x: Any) -> Any:
        for layer in range(layers):
            x = jnp.tanh(x @ x) + layer
        return x

    network.__name__ = f"network_{layers}_{name}"
    return network


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
