"""The error for a name that neither the cell nor the notebook defines."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Mapping
from typing import Any

from tpunb.cells.reading.source import PROVIDED, StepSource
from tpunb.errors import CellError, did_you_mean

_ALIASES = {
    "jnp": "jax.numpy",
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "tf": "tensorflow",
}

_TYPO = 0.85
"""The likeness of two names from which one of them is probably a slip of the other."""


class CellNameError(CellError, NameError):
    """The error of a cell that reads an undefined name."""


def undefined_name(
    cell: StepSource, name: str, namespace: Mapping[str, Any], bound: Mapping[str, Any]
) -> CellNameError:
    """Return the error for a name that is not defined in the cell or the notebook."""
    message = f"Line {cell.names.reads[name]}: name `{name}` is not defined."
    has_attribute = any(
        isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == name
        for node in cell.nodes
    )
    if has_attribute and (name in _ALIASES or name in {*sys.stdlib_module_names, "keras"}):
        alias = f"{_ALIASES[name]} as {name}" if name in _ALIASES else name
        return CellNameError(message, fix=f"Import it in a cell above: `import {alias}`.")
    if name in cell.names.assigned:
        message = f"{message[:-1]} before the cell assigns it."
        hint = f"Give it a value in a cell above, such as `{name} = 0.0`."
    elif "batch" in bound:
        hint = f"A step's batch is `batch`; `--as {name},...` names its parts."
    elif name == "batch":
        hint = "A step has a `batch` where -d names the data: `%%tpu_run -d dataset`."
    else:
        hint = _of_batch(name, namespace)
    known = {*_shown(namespace), *cell.names.assigned, *PROVIDED} - {name}
    meant = did_you_mean(name, sorted(known))
    return CellNameError(message, fix=" ".join(filter(None, (hint, meant))))


def _shown(namespace: Mapping[str, Any]) -> list[str]:
    return [word for word in namespace if not word.startswith("_")]


def _of_batch(name: str, namespace: Mapping[str, Any]) -> str:
    """Return how a cell gets a part of a batch, if the notebook has a dataset and no such name."""
    datasets = [word for word in _shown(namespace) if _is_dataset(namespace[word])]
    if not datasets or difflib.get_close_matches(name, _shown(namespace), cutoff=_TYPO):
        return ""
    return (
        "The parts of a batch have the names that `--as` gives them: "
        f"`%%tpu_run -d {datasets[-1]} --as {name},...`."
    )


def _is_dataset(value: Any) -> bool:
    """Return whether a value is a dataset of TensorFlow, which cells of JAX need not have."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, tf.data.Dataset)
