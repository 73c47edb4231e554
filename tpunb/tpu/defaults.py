"""Defaults: the TPU type to simulate, the port of workers, and when the compiler judges."""

from __future__ import annotations

DEFAULT_TPU = "v5e-8"
"""The TPU type that is simulated by default."""

WORKER_PORT = 8470
"""The default port of a TPU's worker and of `tpunb worker`."""

JUDGE_TIMES = ("wait", "later", "off")
"""When the compiler judges JAX's programs: a call waits, the verdict is shown later, or never."""
