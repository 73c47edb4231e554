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


def main() -> None:
    """Measure all cases."""
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TPUNB_VERDICTS"] = folder
        found = {**_connecting(), **_calls(), "kept": _kept()}
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


def _kept() -> list[float]:
    """Measure finding verdicts that an earlier connection has kept."""
    import jax
    import jax.numpy as jnp

    import tpunb
    from tpunb.compiler.judge import Judge

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
