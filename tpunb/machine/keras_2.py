"""The choice of Keras 2 (tf_keras), before TensorFlow is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from tpunb.errors import ConnectError
from tpunb.machine.tested_releases import minor_of, tensorflow_version, version_of

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


def chooses_keras_2(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment makes tf_keras the `tf.keras`, as TensorFlow reads it."""
    return environment.get(_LEGACY_KERAS, "") in ("1", "true", "True")


def install_tf_keras(tensorflow: str | None) -> str:
    """Return the command that installs Keras 2 for a version of TensorFlow.

    It leaves out the dependencies, which would put `tensorflow` over `tensorflow-cpu`'s files.
    """
    wanted = f"=={minor}.*" if (minor := minor_of(tensorflow)) else ""
    return f'pip install --no-deps "tf_keras{wanted}"'


def choose_keras_2(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make tf_keras the `tf.keras` of a process that has not imported TensorFlow yet.

    TensorFlow reads an environment variable when it is imported, and does not change afterwards.

    Args:
        environment: The process's environment variables, which this function changes.
    """
    environment[_LEGACY_KERAS] = "1"


def require_keras_2_here() -> str:
    """Check that Keras 2 is the `tf.keras` of this process, or can become it.

    Returns:
        A sentence for the user.

    Raises:
        ConnectError: Keras 2 is not installed, or TensorFlow was imported with Keras 3.
    """
    sentence = require_keras_2()
    if "tensorflow" in sys.modules and not chooses_keras_2():
        raise ConnectError(
            "TensorFlow was imported with Keras 3 and cannot change to Keras 2.",
            fix="Restart the kernel, and choose Keras 2 before anything imports TensorFlow.",
        )
    return sentence


def require_keras_2() -> str:
    """Check that Keras 2 is installed, in the release of this environment's TensorFlow.

    Returns:
        A sentence with its version.

    Raises:
        ConnectError: Keras 2 is not installed, or is made for another TensorFlow.
    """
    tensorflow, keras_2 = tensorflow_version(), version_of("tf_keras")
    fix = f"{install_tf_keras(tensorflow)}, then restart the kernel."
    if keras_2 is None:
        raise ConnectError("Keras 2 is the package tf_keras, which is not installed.", fix=fix)
    if tensorflow is not None and minor_of(keras_2) != minor_of(tensorflow):
        raise ConnectError(f"tf_keras {keras_2} is not made for TensorFlow {tensorflow}.", fix=fix)
    return f"tf.keras is Keras 2 (tf_keras {keras_2})."
