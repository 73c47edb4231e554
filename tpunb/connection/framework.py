"""The framework that a virtual TPU is for: TensorFlow, or JAX."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

TENSORFLOW, JAX = "tensorflow", "jax"
FRAMEWORKS = (TENSORFLOW, JAX)
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
    loaded = {name for name in FRAMEWORKS if sys.modules.get(name) is not None}
    for found in (named, _backend_of_keras(), loaded, installed_frameworks()):
        if len(found) == 1:
            return next(iter(found)), ""
    return TENSORFLOW, _NOT_CLEAR if JAX in installed_frameworks() else ""


def _backend_of_keras() -> set[str]:
    ask = getattr(getattr(sys.modules.get("keras"), "backend", None), "backend", lambda: "")
    name = ask()
    return {name} & set(FRAMEWORKS)


def installed_frameworks() -> set[str]:
    """Return the frameworks that are installed here, without importing them."""
    return {name for name in FRAMEWORKS if _is_installed(name)}


def _is_installed(name: str) -> bool:
    try:
        return sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a finder refuses the import, or a stand-in has no spec
        return False
