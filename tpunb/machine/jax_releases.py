"""The releases of JAX that a virtual TPU can use."""

from __future__ import annotations

import platform
import sys

from tpunb.machine.setup_problem import SetupProblem
from tpunb.machine.tested_releases import dotted, release

OLDEST_JAX, ITS_PYTHON = (0, 7, 2), (3, 11)
"""The oldest release of JAX that a virtual TPU can use, and the oldest Python that has it."""


def too_old_jax(jax: str) -> SetupProblem | None:
    """Return the problem that a release of JAX is too old for a virtual TPU, or None."""
    if release(jax) >= OLDEST_JAX:
        return None
    oldest = dotted(OLDEST_JAX)
    what = f"A virtual TPU needs JAX {oldest} or later, and this is JAX {jax}."
    if sys.version_info >= ITS_PYTHON:
        fix = f'Run %pip install "jax>={oldest}" and restart the kernel.'
        return SetupProblem("jax", what, fix, f'pip install "jax>={oldest}"')
    fix = (
        f"JAX {oldest} needs Python {dotted(ITS_PYTHON)} or later, and this is Python "
        f"{platform.python_version()}. Install tpunb and jax in a newer Python."
    )
    return SetupProblem("jax", what, fix)
