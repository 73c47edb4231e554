"""The framework that a virtual TPU is for: TensorFlow, or JAX."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

TENSORFLOW, JAX = "tensorflow", "jax"
FRAMEWORKS = (TENSORFLOW, JAX)
"""The frameworks, by the names of their packages."""

FRAMEWORK_VARIABLE = "TPUNB_FRAMEWORK"
"""The environment variable with the framework of kernels that have a virtual TPU."""

NAMES = {TENSORFLOW: "TensorFlow", JAX: "JAX"}

_NOT_CLEAR = (
    "TensorFlow and JAX are both here: this virtual TPU is TensorFlow's. For JAX: "
    "%tpu_connect --simulate v5e-8 --framework jax."
)


def framework_for(asked: str | None, namespace: Mapping[str, Any]) -> tuple[str, str]:
    """Return the framework of a virtual TPU, and a note if the choice is not clear.

    The first of these that names one framework decides: the request, the modules among the
    notebook's names, the backend of Keras, the imported modules, the installed packages.

    Args:
        asked: The framework that the user asked for; None if the user did not.
        namespace: The notebook's names.
    """
    if asked is not None:
        return asked, ""
    named = {
        top
        for value in list(namespace.values())
        if isinstance(value, types.ModuleType)
        and (top := value.__name__.partition(".")[0]) in FRAMEWORKS
    }
    keras = {backend_of_keras()} & set(FRAMEWORKS)
    for found in (named, keras, imported_frameworks(), installed_frameworks()):
        if len(found) == 1:
            return next(iter(found)), ""
    return TENSORFLOW, _NOT_CLEAR if JAX in installed_frameworks() else ""


def backend_of_keras() -> str:
    """Return the backend of Keras 3, also while Keras is being imported; empty without Keras 3."""
    config = sys.modules.get("keras.src.backend.config")
    return str(getattr(config, "backend", lambda: "")())


def imported_frameworks() -> set[str]:
    """Return the frameworks that this process has imported."""
    return {name for name in FRAMEWORKS if sys.modules.get(name) is not None}


def installed_frameworks() -> set[str]:
    """Return the frameworks that are installed here, without importing them."""
    return {name for name in FRAMEWORKS if is_importable(name)}


def is_importable(name: str) -> bool:
    """Return whether a module is imported, or could be."""
    try:
        return sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a finder refuses the import, or a stand-in has no spec
        return False
