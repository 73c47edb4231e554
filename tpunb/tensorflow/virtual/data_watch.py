"""Where the package tells a strategy what looks at the data that it distributes.

Warnings about the data belong to the room `checks`, which the strategies do not import.
`tpunb/__init__.py` registers `tpunb/tensorflow/checks/fit_notes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Watch = Callable[[int, Any, Any], None]
"""Takes the number of replicas, the data, and the same data as distributed."""

_registered: Watch | None = None


def register_data_watch(watch: Watch) -> None:
    """Set what looks at the data of every strategy."""
    global _registered
    _registered = watch


def data_arrives(replicas: int, dataset: Any, distributed: Any) -> None:
    """Show data to the registered function, on the caller's stack."""
    assert _registered is not None, "tpunb/__init__.py registers it"
    _registered(replicas, dataset, distributed)
