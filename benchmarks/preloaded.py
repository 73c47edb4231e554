"""The imports of the process from which the processes that measure training are forked."""

from __future__ import annotations

from tpunb.machine.import_tensorflow import import_tensorflow

import_tensorflow()

import keras  # noqa: E402, F401

from tpunb.virtual import VirtualTPUStrategy  # noqa: E402, F401
