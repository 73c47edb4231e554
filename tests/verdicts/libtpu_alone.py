"""Compile HLO with libtpu alone; TensorFlow lowers it, and no code of tpunb takes part.

    python -m verdicts.libtpu_alone TOPOLOGY EFFORT < REQUESTS > ANSWERS

A request is a pickled serialized module, an answer a pickled dict. As in JAX's own ahead-of-time
compilation, the HLO becomes MLIR, and a compile-only client of the topology compiles it.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def main() -> None:
    """Answer requests until there are no more."""
    os.environ.update(ENVIRONMENT)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    devices = _devices(sys.argv[1])
    while True:
        try:
            module = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_compiled(module, devices, sys.argv[2]), answers)
        answers.flush()


def _devices(topology: str) -> list[Any]:
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def _compiled(serialized: bytes, devices: list[Any], effort: str) -> dict[str, Any]:
    import jax._src.interpreters.mlir as jax_mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir

    computation = xla_client.XlaComputation(serialized)
    try:
        text = _jax.mlir.xla_computation_to_mlir_module(computation)
        with jax_mlir.make_ir_context():
            module = ir.Module.parse(text)
            copies: list[Any] = []

            def see(operation: Any) -> Any:
                if operation.name == "mhlo.copy":
                    copies.append(operation)
                return ir.WalkResult.ADVANCE

            module.operation.walk(see)
            for copy in copies:
                copy.results[0].replace_all_uses_with(copy.operands[0])
                copy.erase()
        options = xla_client.CompileOptions()
        if effort:
            options.env_option_overrides = [("xla_optimization_level", effort)]
        with module.context:
            executable = devices[0].client.compile(
                module, xla_client.DeviceList(tuple(devices)), options
            )
    except Exception as error:
        return {"refused": f"libtpu: {error}"}
    return {"peak": executable.get_compiled_memory_stats().peak_memory_in_bytes}


if __name__ == "__main__":
    main()
