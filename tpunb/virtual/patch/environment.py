"""Environment variables by which notebooks know that there is a TPU."""

from __future__ import annotations

import contextlib

from tpunb.tpu.types import Accelerator
from tpunb.virtual.patch.patch_tools import variable
from tpunb.virtual.patch.state import ADDRESS


def set_tpu_variables(accelerator: Accelerator, undo: contextlib.ExitStack) -> None:
    """Sets those that are not set: Colab's of old, and that of a TPU VM for its type."""
    values = {
        "COLAB_TPU_ADDR": ADDRESS,
        "TPU_NAME": f"grpc://{ADDRESS}",
        "XRT_TPU_CONFIG": f"tpu_worker;0;{ADDRESS}",
        "TPU_ACCELERATOR_TYPE": accelerator.name,
    }
    for name, value in values.items():
        undo.enter_context(variable(name, value))
