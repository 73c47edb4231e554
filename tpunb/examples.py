"""The files that the notebooks use, in an installation as in a checkout.

`tpunb.examples.path("digits_on_a_tpu.ipynb")` is a notebook that somebody wrote for a TPU, and
`path("recorded")` and `path("puzzles")` are folders with the compiler's verdicts on the programs
of the course and of the puzzles.
"""

from __future__ import annotations

from pathlib import Path

from tpunb.errors import TpunbError

__all__ = ["path"]

FILES = {
    "quickstart.ipynb": "00_quickstart.ipynb",
    "jax_quickstart.ipynb": "09_jax_on_a_virtual_tpu.ipynb",
    "digits_on_a_tpu.ipynb": "found/digits_on_a_tpu.ipynb",
    "recorded": "course/recorded",
    "puzzles": "puzzles/recorded",
}
"""The files by name, and their places in the checkout's folder `notebooks`."""

PACKAGED = Path(__file__).with_name("example_files")
"""Where `hatch_build.py` puts them in a wheel."""

_CHECKOUT = Path(__file__).parents[1] / "notebooks"


def path(name: str) -> Path:
    """Return the path of a file or folder.

    Args:
        name: A name of `FILES`.

    Raises:
        TpunbError: The name does not exist.
    """
    if name not in FILES:
        raise TpunbError(f"There is no example {name!r}.", fix=f"Choose one of: {', '.join(FILES)}")
    packaged = PACKAGED / name
    return packaged if packaged.exists() else _CHECKOUT / FILES[name]
