"""Share one TensorFlow, with enough logical CPU devices, among all tests of a process."""

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

# Set before anything imports TensorFlow, here and in the processes that tests start.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Raise internal errors: otherwise a slower fallback would hide them.
os.environ["TPUNB_RAISE_INTERNAL_ERRORS"] = "1"
# Without oneDNN, numbers can be compared to the last digit. Set the variable to 1 to test with it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# A gcloud of this machine has no account here, and asks no server.
os.environ["CLOUDSDK_CONFIG"] = str(Path(tempfile.gettempdir(), "gcloud-of-tests"))

LOGICAL_CPUS = 40
"""Enough for a virtual TPU of 32 cores and its hosts."""

THREADS = 16
"""With one thread for each of 2 processors, many logical devices can deadlock."""

# Make TensorFlow as cheap to import in the processes that tests start as it is here.
CHILDREN = str(Path(__file__).parent / "support" / "children")
PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join([CHILDREN, *filter(None, PATHS)])
# The collector would walk the imported objects again and again, and free none of them.
gc.disable()

pytest.register_assert_rewrite("support", "counterparts")

from support.importing import (  # noqa: E402  asserts are rewritten on import
    imports_tensorflow,
    keep_imports,
)

# A shell's background processes ignore SIGINT, and those under nohup ignore SIGHUP. The tests, and
# the processes that they start, send both.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# On a busy machine, a slow example means nothing. In CI, the examples are always the same.
settings.register_profile("tpunb", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tpunb")


UNUSED = ("jax", "matplotlib", "pandas", "sklearn")
"""Optional imports of TensorFlow and Keras, which no test needs there.

They take a third of the import, and AutoGraph walks all loaded modules for each function that it
converts.
"""


@functools.cache
def import_tensorflow() -> Any:
    """Import TensorFlow as if `UNUSED` were not installed; tests can import those later."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import tensorflow as tf
        from tensorflow.python.autograph.pyct import inspect_utils
    finally:
        for name in hidden:
            del sys.modules[name]
    # It repairs the sources of programs packed as PAR files, and for that asks each module for its
    # file whenever a function is converted.
    inspect_utils._fix_linecache_record = lambda converted: None
    return tf


BROWSER = "browser"
"""The folder of the tests that run in a browser."""

NOTEBOOK = ".ipynb"
"""The files that nbval runs on request: each has a kernel, and its cells are tests."""

WITHOUT_TENSORFLOW = "not tensorflow"
"""The beginning of pytest's `-m` that selects the tests without TensorFlow."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the compiler's verdicts in a folder of this run, and leave the user's alone."""
    if hasattr(config, "workerinput"):  # the main process has done this
        return
    verdicts = tempfile.TemporaryDirectory(prefix="tpunb-verdicts-", ignore_cleanup_errors=True)
    os.environ["TPUNB_VERDICTS"] = verdicts.name
    config.add_cleanup(verdicts.cleanup)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect files that import TensorFlow if it is not wanted."""
    if not _is_without_tensorflow(config) or collection_path.suffix != ".py":
        return None
    # All browser tests are marked; their other imports take a second.
    unwanted = collection_path.parent.name == BROWSER or imports_tensorflow(collection_path)
    return True if unwanted else None


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Import TensorFlow without its optional imports before the first test file that needs it."""
    if imports_tensorflow(module_path):
        import_tensorflow()


def _is_without_tensorflow(config: pytest.Config) -> bool:
    return bool(config.option.markexpr.startswith(WITHOUT_TENSORFLOW))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need TensorFlow, and put slow files first.

    A slow file that starts last would keep the other processes waiting. The browser tests take
    longest, since a single process runs them all.
    """
    for item in items:
        if item.path.suffix == NOTEBOOK:
            item.add_marker("tensorflow")
            item.add_marker("slow")
        elif imports_tensorflow(item.path) or "tf" in getattr(item, "fixturenames", ()):
            item.add_marker("tensorflow")
        elif item.path.parent.name == BROWSER:
            # Their kernels import TensorFlow, and pages leave processor time to other tests.
            item.add_marker("tensorflow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.parent.name != BROWSER, item.path not in slow))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported objects from garbage collection: TensorFlow alone creates a million."""
    keep_imports()
    if _is_without_tensorflow(session.config) and "tensorflow" in sys.modules:
        pytest.exit("A test module that needs no TensorFlow imports it.", returncode=3)
    gc.freeze()
    gc.enable()
    # Graphs create hundreds of thousands of objects: collect less often.
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all browser tests to one process, which starts one Jupyter server for them."""
    from xdist.scheduler import LoadFileScheduling

    class BrowserInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return BROWSER if f"/{BROWSER}/" in f"/{file}" else file

    return BrowserInOneProcess(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def no_tensorflow_unasked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an unmarked test that imports TensorFlow: its mark decides in which run it is."""
    before = "tensorflow" in sys.modules
    yield
    if request.node.get_closest_marker("tensorflow") is None:
        assert before or "tensorflow" not in sys.modules, "ask for the fixture tf"


@pytest.fixture(autouse=True)
def no_seed_stays() -> Iterator[None]:
    """Forget a test's global seed: a seed that a TPU ignores gives a warning."""
    yield
    if (tf := sys.modules.get("tensorflow")) is not None:
        from tensorflow.python.eager import context

        if context.global_seed() is not None:
            tf.compat.v1.set_random_seed(None)


@pytest.fixture(scope="module", autouse=True)
def connections_end() -> Iterator[None]:
    """Close the connections that a module's tests leave open: they would affect the next module."""
    yield
    if (module := sys.modules.get("tpunb.connection.tpu_connection")) is not None:
        for connection in module.open_connections():
            connection.close()


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """Exclude the objects of earlier modules from a module's many garbage collections.

    The collector takes half a second to visit them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def logical_cpus() -> None:
    """Start TensorFlow with its logical CPUs, if any test file has imported it.

    Devices cannot be added later, and a second process costs seconds. So all tests share these
    devices, even tests that need fewer.
    """
    if "tensorflow" in sys.modules:
        _start_tensorflow()


@pytest.fixture(scope="session")
def tf() -> Any:
    """Return TensorFlow, with its logical CPUs, for modules that do not import it."""
    return _start_tensorflow()


@pytest.fixture(scope="module")
def fresh_keras_names(tf: Any) -> Iterator[None]:
    """Restart Keras's counting of names before and after a module's tests."""
    import keras

    # Do not collect garbage here: Python frees the earlier models in time.
    keras.backend.clear_session(free_memory=False)
    yield
    keras.backend.clear_session(free_memory=False)


@pytest.fixture
def place_softly(tf: Any) -> Iterator[Callable[[bool], None]]:
    """Set soft device placement for one test.

    A virtual TPU treats a value that was set differently from the default, and TensorFlow cannot
    unset it.
    """
    from tensorflow.python.eager import context

    yield tf.config.set_soft_device_placement
    tf.config.set_soft_device_placement(True)
    context.context()._soft_device_placement = None


@pytest.fixture
def book(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Open a shell that has run the cells in the test module's `OPENING`, if it has any."""
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
        pass  # TensorFlow has started already; the next line checks its devices
    if len(tf.config.list_logical_devices("CPU")) < LOGICAL_CPUS:
        pytest.exit("A test module started TensorFlow when it was imported.", returncode=3)
    return tf
