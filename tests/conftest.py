"""What all tests share: one TensorFlow with enough logical CPU devices."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before anything imports TensorFlow, here and in the processes that tests start.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# An error that a slower way makes good would never be noticed.
os.environ["TPUNB_RAISE_INTERNAL_ERRORS"] = "1"
# Off, numbers can be compared to the last digit; `TF_ENABLE_ONEDNN_OPTS=1` runs all with it on.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

LOGICAL_CPUS = 40
"""Enough for a virtual TPU of 32 cores and its hosts."""

THREADS = 16
"""With a thread for each of 2 processors, many logical devices can wait for each other."""

# Has each process that tests start import TensorFlow as cheaply as this one does.
CHILDREN = str(Path(__file__).parent / "support" / "children")
PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join([CHILDREN, *filter(None, PATHS)])
# The collector would walk through what is imported again and again, and free nothing of it.
gc.disable()

pytest.register_assert_rewrite("support", "counterparts")

from support.importing import (  # noqa: E402  asserts are rewritten on import
    imports_tensorflow,
    keep_imports,
)

# A shell's background processes ignore interrupts, and those under nohup SIGHUP; the tests
# send them, and so do the processes that they start.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# On a busy machine a slow example says nothing; in CI the examples are always the same.
settings.register_profile("tpunb", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tpunb")


UNUSED = ("jax", "matplotlib", "pandas", "sklearn")
"""What TensorFlow and Keras import if it is there. No test needs it of them, it is a third of
their import, and for each function that it converts AutoGraph walks all modules that there are."""


@functools.cache
def import_tensorflow() -> Any:
    """TensorFlow, imported as if `UNUSED` were not installed; tests can import that themselves."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import tensorflow as tf
        from tensorflow.python.autograph.pyct import inspect_utils
    finally:
        for name in hidden:
            del sys.modules[name]
    # It mends what another way of packing Python programs does to their sources, and for that asks
    # each module for its file, whenever a function is converted.
    inspect_utils._fix_linecache_record = lambda converted: None
    return tf


BROWSER = "browser"
"""The folder of tests that a browser shows."""

NOTEBOOK = ".ipynb"
"""What nbval runs, if it is asked to: a kernel each, whose cells are tests."""

WITHOUT_TENSORFLOW = "not tensorflow"
"""How pytest's `-m` begins for the tests that need no TensorFlow."""


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the compiler's verdicts of a run for that run, and leaves the user's alone."""
    if hasattr(config, "workerinput"):  # the process that started this one has done so
        return
    verdicts = tempfile.TemporaryDirectory(prefix="tpunb-verdicts-", ignore_cleanup_errors=True)
    os.environ["TPUNB_VERDICTS"] = verdicts.name
    config.add_cleanup(verdicts.cleanup)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files unimported whose import would be TensorFlow's, where that is not wanted."""
    if not _is_without_tensorflow(config) or collection_path.suffix != ".py":
        return None
    # All tests of the browser are marked; what they import besides takes a second.
    unwanted = collection_path.parent.name == BROWSER or imports_tensorflow(collection_path)
    return True if unwanted else None


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Imports TensorFlow before the first test file that does, sparing what only makes it slow."""
    if imports_tensorflow(module_path):
        import_tensorflow()


def _is_without_tensorflow(config: pytest.Config) -> bool:
    return bool(config.option.markexpr.startswith(WITHOUT_TENSORFLOW))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs TensorFlow, and puts slow files first.

    A file that is begun last, when all others are done, would keep everybody waiting. Those of
    the browser are the longest, as one process has them all.
    """
    for item in items:
        if item.path.suffix == NOTEBOOK:
            item.add_marker("tensorflow")
            item.add_marker("slow")
        elif imports_tensorflow(item.path) or "tf" in getattr(item, "fixturenames", ()):
            item.add_marker("tensorflow")
        elif item.path.parent.name == BROWSER:
            # Kernels of theirs import it; and pages leave time for those that compute.
            item.add_marker("tensorflow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.parent.name != BROWSER, item.path not in slow))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spares the collector what has been imported: TensorFlow's objects are a million."""
    keep_imports()
    if _is_without_tensorflow(session.config) and "tensorflow" in sys.modules:
        pytest.exit("A test module that needs no TensorFlow imports it.", returncode=3)
    gc.freeze()
    gc.enable()
    # Graphs make objects by the hundred thousand: the collector would look for cycles all the time.
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Leaves all browser tests to one process, which starts one Jupyter server for them."""
    from xdist.scheduler import LoadFileScheduling

    class Lanes(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return BROWSER if f"/{BROWSER}/" in f"/{file}" else file

    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def no_tensorflow_unasked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that imports TensorFlow and is not marked so: it would be in the wrong run."""
    before = "tensorflow" in sys.modules
    yield
    if request.node.get_closest_marker("tensorflow") is None:
        assert before or "tensorflow" not in sys.modules, "ask for the fixture tf"


@pytest.fixture(scope="module", autouse=True)
def connections_end() -> Iterator[None]:
    """Closes the connections that a module's tests leave open: the next module's models have none."""
    yield
    if (module := sys.modules.get("tpunb.connection.connection")) is not None:
        for connection in module.open_connections():
            connection.close()


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

    # Python's collector frees the models of the tests before, when it is due.
    keras.backend.clear_session(free_memory=False)
    yield
    keras.backend.clear_session(free_memory=False)


@pytest.fixture
def place_softly(tf: Any) -> Iterator[Callable[[bool], None]]:
    """Sets soft device placement for one test.

    A TPU tells what was set from what was not, and TensorFlow cannot unset it.
    """
    from tensorflow.python.eager import context

    yield tf.config.set_soft_device_placement
    tf.config.set_soft_device_placement(True)
    context.context()._soft_device_placement = None


@pytest.fixture
def book(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A shell that has run the cells in `OPENING` of the test's module, if it has some."""
    for variable in ("TPUNB_TPU", "TPUNB_REQUIRE_TPU", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    from support.shell import Notebook

    with Notebook(tmp_path, *getattr(request.module, "OPENING", ())) as notebook:
        yield notebook


def _start_tensorflow() -> Any:
    tf = import_tensorflow()
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
