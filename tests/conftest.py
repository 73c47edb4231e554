"""What all tests share: one TensorFlow with enough logical CPU devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before anything imports TensorFlow, here and in the processes that tests start.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

LOGICAL_CPUS = 40
"""Enough for a virtual TPU of 32 cores and its hosts."""

THREADS = 16
"""With a thread for each of 2 processors, many logical devices can wait for each other."""

# On a busy machine a slow example says nothing; in CI the examples are always the same.
settings.register_profile("tpunb", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tpunb")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts files with slow tests first: begun last, one alone would keep the others waiting.

    How slow is said by the time limit that a file asks for.
    """
    usual = float(config.getini("timeout"))
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0]) if marker else usual
        limits[item.path] = max(limit, limits.get(item.path, usual))
    items.sort(key=lambda item: -limits[item.path])


@pytest.fixture(scope="session", autouse=True)
def logical_cpus() -> None:
    """Starts TensorFlow with its logical CPUs, if any of the tests has imported it.

    Devices cannot be added later, and a second process costs seconds; so all
    tests share these, whatever they would have asked for alone.
    """
    if "tensorflow" in sys.modules:
        _start_tensorflow()


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, with its logical CPUs, for tests in modules that do not import it."""
    return _start_tensorflow()


@pytest.fixture(scope="module")
def fresh_keras_names(tf: Any) -> Iterator[None]:
    """Lets Keras count its names from the start, for a module's tests and after them."""
    import keras

    keras.backend.clear_session()
    yield
    keras.backend.clear_session()


@pytest.fixture
def place_softly(tf: Any) -> Iterator[Callable[[bool], None]]:
    """Sets soft device placement for one test.

    A TPU tells what was set from what was not, and TensorFlow cannot unset it.
    """
    from tensorflow.python.eager import context

    yield tf.config.set_soft_device_placement
    tf.config.set_soft_device_placement(True)
    context.context()._soft_device_placement = None


def _start_tensorflow() -> Any:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
        )
        tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    except RuntimeError:
        pass  # It runs already: the next line says whether that is well.
    if len(tf.config.list_logical_devices("CPU")) < LOGICAL_CPUS:
        pytest.exit("A test module started TensorFlow when it was imported.", returncode=3)
    return tf
