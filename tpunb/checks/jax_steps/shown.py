"""Where the findings are shown. This module is without JAX, which the notebook may not have."""

from __future__ import annotations

below_cells = False
"""True if a notebook shows the findings below its cells; otherwise they are warnings."""
