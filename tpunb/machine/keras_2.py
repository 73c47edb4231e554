"""Keras 2 as `tf.keras`, for notebooks that were written for it: the package tf_keras.

TensorFlow reads a variable of the environment when it is imported, and keeps to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from tpunb.errors import ConnectError
from tpunb.machine.software import find_software, install_tf_keras, release, tensorflow_version

_VARIABLE = "TF_USE_LEGACY_KERAS"


def is_chosen(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the environment chooses Keras 2, as TensorFlow reads it."""
    return environment.get(_VARIABLE, "") in ("1", "true", "True")


def choose(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes Keras 2 the `tf.keras` of a process that has not imported TensorFlow yet.

    Args:
        environment: The process's environment variables, which are changed.
    """
    environment[_VARIABLE] = "1"


def require_here() -> str:
    """Checks that Keras 2 is the `tf.keras` of this process, or can become it.

    Returns:
        A sentence that says so.

    Raises:
        ConnectError: It is not installed, or TensorFlow has been imported with Keras 3.
    """
    sentence = require_installed()
    if "tensorflow" in sys.modules and not is_chosen():
        raise ConnectError(
            "TensorFlow was imported with Keras 3 before, and keeps to it.",
            fix="Restart the kernel, and choose Keras 2 before anything imports TensorFlow.",
        )
    return sentence


def require_installed() -> str:
    """Checks that Keras 2 is installed, in the release of this environment's TensorFlow.

    Returns:
        A sentence with its version.

    Raises:
        ConnectError: It is not installed, or made for another TensorFlow.
    """
    tensorflow = tensorflow_version()
    found = find_software(os.environ).versions.get("tf_keras")
    fix = f"{install_tf_keras(tensorflow)}, then restart the kernel."
    if found is None:
        raise ConnectError("Keras 2 is the package tf_keras, which is not installed.", fix=fix)
    if tensorflow is not None and release(found)[:2] != release(tensorflow)[:2]:
        raise ConnectError(f"tf_keras {found} is not made for TensorFlow {tensorflow}.", fix=fix)
    return f"tf.keras is Keras 2 (tf_keras {found})."
