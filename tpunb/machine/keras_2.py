"""Keras 2 as `tf.keras`, for notebooks that were written for it: the package tf_keras.

TensorFlow reads a variable of the environment when it is imported, and keeps to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from tpunb.errors import ConnectError
from tpunb.machine.software import (
    LEGACY_KERAS,
    chooses_keras_2,
    find_software,
    install_tf_keras,
    release,
    tensorflow_version,
)


def choose(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes Keras 2 the `tf.keras` of a process that has not imported TensorFlow yet.

    Args:
        environment: The process's environment variables, which are changed.
    """
    environment[LEGACY_KERAS] = "1"


def require_here() -> str:
    """Checks that Keras 2 is the `tf.keras` of this process, or can become it.

    Returns:
        A sentence that says so.

    Raises:
        ConnectError: It is not installed, or TensorFlow has been imported with Keras 3.
    """
    sentence = require_installed()
    if "tensorflow" in sys.modules and not chooses_keras_2():
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
