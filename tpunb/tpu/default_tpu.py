"""The TPU type to simulate by default, and the port of its workers."""

from __future__ import annotations

DEFAULT_TPU = "v5e-8"
"""The TPU type that is simulated by default."""

WORKER_PORT = 8470
"""The default port of a TPU's worker."""
