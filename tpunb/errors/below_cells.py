"""Whether a notebook shows sentences about programs below its cells. Else they are warnings."""

from __future__ import annotations

is_shown = False
"""True while a notebook shows them."""
