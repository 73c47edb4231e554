"""TensorFlow's part of `tpunb.virtual.install`: its own names find a virtual TPU."""

from __future__ import annotations

import contextlib

from tpunb.tensorflow.virtual.patch.device_names import TPUNames
from tpunb.tensorflow.virtual.patch.patched_names import make_changes
from tpunb.tensorflow.virtual.runtime.devices import virtual_devices
from tpunb.tensorflow.virtual.tensorflow_strategies import STAND_INS
from tpunb.virtual.installation import Installation, set_current, set_failure
from tpunb.virtual.installer import lock, uninstall


def install(installation: Installation) -> Installation:
    """Make TensorFlow's names find a virtual TPU. See `tpunb.framework.Framework.install`."""
    with lock:
        installation.names = TPUNames(
            installation.accelerator, virtual_devices(installation.accelerator)
        )
        uninstall()
        with contextlib.ExitStack() as undo:  # undo all changes if one of them fails
            make_changes(installation, STAND_INS, undo)
            installation.undo = undo.pop_all()
        set_current(installation)
        set_failure(None)
    return installation
