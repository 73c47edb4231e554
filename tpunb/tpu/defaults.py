"""Defaults: the TPU type to simulate, and the port of workers."""

from __future__ import annotations

DEFAULT_TPU = "v5e-8"
"""The TPU type that is simulated unless another is given."""

WORKER_PORT = 8470
"""The port of a TPU's worker, and of `tpunb worker`, unless another is given."""
