"""Compare the time estimate with published times of JAXBench's programs on one v6e.

    cd tests && python -m verdicts.measured_of_jaxbench ACCELERATOR_AGENTS [NAMES]

`ACCELERATOR_AGENTS` is a clone of AI-Hypercomputer/accelerator-agents at commit `c6e66f4`: the
times are from before commit `5d39d1a`, which gave a batch to `4p_Sparse_Attention`. As in
JAXBench's own harness, numbers are bfloat16 where a program lets its caller choose. Prints a row of
the table in `docs/compiler-accuracy.md` for each program. Needs a Python with JAX.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import tpunb
from verdicts.printed import say_row

ROWS = {
    "8p_GEMM": 5.344e-3,
    "12p_RMSNorm": 1.235e-3,
    "13p_Cross_Entropy": 14.366e-3,
    "18k_Conv2D_ReLU_BiasAdd": 1.912e-3,
    "4p_Sparse_Attention": 3.972e-3,
    "14p_Ragged_Dot": 1.380e-3,
    "15p_RetNet_Retention": 10.457e-3,
    "17p_Triangle_Multiplication": 13.460e-3,
    "20k_Gemm_Multiply_LeakyReLU": 0.830e-3,
    "26k_BMM_InstanceNorm_Sum_ResidualAdd_Multiply": 0.880e-3,
    "30k_Matmul_Scaling_ResidualAdd": 0.820e-3,
    "37k_Matmul_Swish_Scaling": 0.792e-3,
    "49k_Matmul_AvgPool_GELU_Scale_Max": 1.052e-3,
}
"""The median of the published times, on the chip."""


def arguments(create: Any) -> tuple[Any, ...]:
    """Return the shapes of a program's arguments."""
    chosen = {"dtype": jnp.bfloat16} if "dtype" in inspect.signature(create).parameters else {}
    return tuple(jax.eval_shape(lambda: create(**chosen)))


def main() -> None:
    """Print the rows."""
    clone, *names = sys.argv[1:]
    for name in names or ROWS:
        file = Path(clone, "JAXBench", "benchmark", name, "baseline.py")
        program = runpy.run_path(str(file), run_name=name)
        answer = tpunb.compile(
            program["workload"],
            *arguments(program["create_inputs"]),
            tpu="v6e-1",
            speed=True,
            timeout=3600,
        )
        say_row(name, "v6e-1", answer, ROWS[name])


if __name__ == "__main__":
    main()
