"""The virtual TPU that a framework's own names find once it is installed."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from tpunb._util.patching import variable
from tpunb.tpu.default_tpu import WORKER_PORT
from tpunb.tpu.types import Accelerator
from tpunb.virtual.arithmetic import Arithmetic
from tpunb.virtual.strictness import Strictness

if TYPE_CHECKING:
    from tpunb.virtual.tensorflow.patch.device_names import TPUNames

ADDRESS = f"10.0.0.2:{WORKER_PORT}"
"""The virtual TPU's worker, at the address of Colab's and Kaggle's former TPU."""


@dataclasses.dataclass
class Installation:
    """The virtual TPU that a framework's names find.

    Attributes:
        accelerator: The TPU type.
        strictness: The rules that strategies enforce.
        environment: Whether environment variables announce the TPU.
        arithmetic: The arithmetic in which strategies multiply matrices.
        addresses: The addresses that resolvers have given as the TPU's.
        undo: Restores everything that was changed.
        framework: The framework; None before the notebook has imported one.
        options_of_jax: Options of `tpunb.connect` for a virtual TPU that is JAX's.
        lent: Whether the installation lasts only as long as a connection.
        before: The installation to restore after a lent installation.
        names: The names of the TPU's devices, once the installation is in force.
    """

    accelerator: Accelerator
    strictness: Strictness
    environment: bool
    arithmetic: Arithmetic = "cpu"
    addresses: set[str] = dataclasses.field(default_factory=lambda: {ADDRESS})
    undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    framework: str | None = None
    options_of_jax: dict[str, Any] = dataclasses.field(default_factory=dict)
    lent: bool = False
    before: Installation | None = None
    names: TPUNames = dataclasses.field(init=False, repr=False, compare=False)


_current: Installation | None = None
_failure: Exception | None = None


def current() -> Installation | None:
    """Return the installation in force, or None."""
    return _current


def set_current(installation: Installation | None) -> None:
    """Make an installation the current installation, or clear it with None."""
    global _current
    _current = installation


def failure() -> Exception | None:
    """Return the reason why the framework's names do not find the virtual TPU, or last did not.

    A notebook may swallow the error and go on without a TPU: `except: strategy =
    tf.distribute.get_strategy()`. A program that runs notebooks to test them can ask here.

    Returns:
        The last such error; None if there was none since the last `install`.
    """
    return _failure


def set_failure(error: Exception | None) -> None:
    """Keep an error for `failure`."""
    global _failure
    _failure = error


def set_tpu_variables(accelerator: Accelerator, undo: contextlib.ExitStack) -> None:
    """Set the variables that are not set yet: old Colab's, and a TPU VM's for the TPU type."""
    values = {
        "COLAB_TPU_ADDR": ADDRESS,
        "TPU_NAME": f"grpc://{ADDRESS}",
        "XRT_TPU_CONFIG": f"tpu_worker;0;{ADDRESS}",
        "TPU_ACCELERATOR_TYPE": accelerator.name,
    }
    for name, value in values.items():
        undo.enter_context(variable(name, value))
