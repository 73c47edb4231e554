"""The exit codes of `tpunb compile`, which its reports have too."""

from __future__ import annotations

from collections.abc import Mapping

FITS, DOES_NOT_FIT, REFUSED = "fits", "does-not-fit", "refused"
NOT_KNOWN, FAILED = "not-known", "failed"
EXIT_CODES: Mapping[str, int] = {FITS: 0, DOES_NOT_FIT: 1, REFUSED: 2, NOT_KNOWN: 3}
"""The codes of the verdicts."""

USAGE, BAD_INPUT, NO_COMPILER, INTERNAL, NO_OUTPUT = 64, 65, 69, 70, 74
"""The codes beside the verdicts, as in sysexits.h: no shell, signal or argparse uses them."""
