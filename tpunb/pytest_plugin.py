"""The pytest options `--tpu TYPE` and `--tpu-keras 2`: nbval runs notebooks on virtual TPUs.

Loaded into every run of pytest where this package is installed: nothing is imported
and nothing happens unless the option is there, or TensorFlow is one for TPUs. That waits
minutes for a TPU that is not there, when a test imports it, and a libtpu that does not fit
it would end the process.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "pytest_addoption",
    "pytest_collect_file",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_load_initial_conftests",
    "pytest_report_header",
]

_WIDGETS = "TPUNB_WIDGETS"
_NBVAL = "nbval"  # the name of its entry point
_KERNEL = "tpunb_kernel"
_FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
_PROBLEM = pytest.StashKey[str]()
_SPLITTING = ("load", "worksteal")  # how xdist would tear a notebook's cells apart


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("tpunb", "virtual TPUs (tpunb)")
    group.addoption(
        "--tpu",
        metavar="TYPE",
        default=None,
        help="Run the notebooks of --nbval or --nbval-lax on a virtual TPU: a type such as v5e-8 "
        "or v3-32, or a number of cores. No kernel has to be installed.",
    )
    group.addoption(
        "--tpu-keras",
        metavar="2",
        type=int,
        choices=(2,),
        default=None,
        help="With --tpu, make tf.keras Keras 2 (tf_keras), for notebooks that were written for "
        "it.",
    )


# Before a conftest.py imports TensorFlow.
@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Keeps a TensorFlow for TPUs from waiting for one, here and in processes that tests start."""
    if not any(map(_is_installed, _FOR_TPU)):
        return
    from tpunb.errors import TpunbError
    from tpunb.machine.software import prepare_tpu_library

    try:
        prepare_tpu_library()
    except TpunbError as error:  # the tests may not import it
        early_config.stash[_PROBLEM] = str(error)


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# nbval's own comes first: it settles its deprecated options.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the kernel that nbval shall use, for the length of the run."""
    tpu = config.option.tpu
    if tpu is None:
        if config.option.tpu_keras is not None:
            raise pytest.UsageError("--tpu-keras is for virtual TPUs: add --tpu TYPE.")
        return
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:  # of xdist; the environment leads to the kernel
        _use(config, workerinput[_KERNEL])
        return
    from tpunb.errors import TpunbError
    from tpunb.notebook.kernels.specs import temporary_kernel

    option = config.option
    if not config.pluginmanager.has_plugin(_NBVAL):
        raise pytest.UsageError("--tpu runs notebooks by nbval: pip install nbval")
    if not (option.nbval or option.nbval_lax):
        raise pytest.UsageError("--tpu is for notebooks: add --nbval or --nbval-lax.")
    if option.nbval_kernel_name:
        raise pytest.UsageError(
            f"--tpu brings its own kernel: leave out --nbval-kernel-name={option.nbval_kernel_name}"
        )
    undo = contextlib.ExitStack()
    try:
        name = undo.enter_context(temporary_kernel(tpu, keras=config.option.tpu_keras))
    except TpunbError as error:
        raise pytest.UsageError(f"--tpu: {error}") from error
    config.add_cleanup(undo.close)
    _use(config, name)
    if getattr(config.option, "dist", None) in _SPLITTING:
        config.option.dist = "loadfile"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Gives kernels of notebooks displays of text; tests beside them see nothing of it."""
    nbval: Any = item.config.pluginmanager.get_plugin(_NBVAL)
    # A setting of the user's own stands.
    mine = nbval is not None and isinstance(item, nbval.IPyNbCell) and _WIDGETS not in os.environ
    if mine:
        os.environ[_WIDGETS] = "never"  # no one looks, even if pytest is run in a notebook
    yield
    if mine:
        del os.environ[_WIDGETS]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker of xdist which kernel there is."""
    if node.config.option.tpu is not None:
        node.workerinput[_KERNEL] = node.config.option.nbval_kernel_name


def _use(config: pytest.Config, kernel: str) -> None:
    config.option.nbval_kernel_name = kernel
    # It is a kernel of this environment, and nbval would take the plain one.
    config.option.nbval_current_env = config.option.current_env = False


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says where the notebooks run, and which TensorFlow would end the process."""
    tpu = config.option.tpu
    problem = config.stash.get(_PROBLEM, None)
    said = [] if problem is None else [f"tpunb: {problem}"]
    keras = "" if config.option.tpu_keras is None else ", and tf.keras is Keras 2"
    return said if tpu is None else [*said, f"tpunb: notebooks run on a virtual TPU, {tpu}{keras}"]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Lets a notebook that is none fail with a sentence in place of a traceback."""
    files = yield
    if parent.config.option.tpu is None:
        return files
    nbval: Any = parent.config.pluginmanager.get_plugin(_NBVAL)
    for file in files:
        if isinstance(file, nbval.IPyNbFile):
            _check_first(file)
    return files


def _check_first(file: Any) -> None:
    collect = file.collect

    def check_and_collect() -> Any:
        from tpunb.notebook.files import NotebookError, read_notebook

        try:
            read_notebook(file.path)
        except NotebookError as error:
            raise pytest.Collector.CollectError(str(error)) from error
        return collect()

    file.collect = check_and_collect


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[Any]) -> None:
    """Lets cells be compared without what differs in every run on a TPU."""
    if config.option.tpu is None:
        return
    nbval: Any = config.pluginmanager.get_plugin(_NBVAL)
    for item in items:
        if isinstance(item, nbval.IPyNbCell):
            compare_without_logs(item)


_LOGS = re.compile(
    # What TensorFlow logs through Python's logging, with its deprecations' second and
    # third line, ...
    r"^(?:WARNING:(?:tensorflow|absl):.*(?:\nInstructions for updating:\n.*)?"
    r"|(?:INFO|DEBUG):(?:tensorflow|absl):.*"
    # ... and its C++ parts, with the time and a thread's number.
    r"|[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ .*"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] .*"
    r"|WARNING: All log messages before absl::InitializeLog.*)(?:\n|\Z)",
    re.MULTILINE,
)
# A TPU's worker has another address every time.
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:8470\b")
_SAME = "ADDRESS:8470"
_PLAIN = "text/plain"


def compare_without_logs(cell: Any) -> None:
    """Lets a cell of nbval compare what its program prints, and not TensorFlow's log.

    The log has dates, addresses and numbers of sessions, and depends on the release.
    """
    compare = cell.compare_outputs

    def compare_outputs(test: Any, ref: Any, *args: Any, **kwargs: Any) -> Any:
        return compare(comparable(test), comparable(ref), *args, **kwargs)

    cell.compare_outputs = compare_outputs


def comparable(outputs: Sequence[Any]) -> list[Any]:
    """A cell's outputs (as in nbformat) without TensorFlow's log and without a TPU's address.

    Streams that hold only log are left out.
    """
    kept = []
    for output in outputs:
        output = copy.deepcopy(output)
        if output.output_type == "stream":
            text = _LOGS.sub("", output.text)
            if not text.strip() and text != output.text:
                continue
            output.text = _ADDRESS.sub(_SAME, text)
        elif isinstance(plain := output.get("data", {}).get(_PLAIN), str):
            output.data[_PLAIN] = _ADDRESS.sub(_SAME, plain)
        kept.append(output)
    return kept
