"""The pytest options `--tpu TYPE` and `--tpu-keras 2`, and the fixture `tpu_compiler`.

With the options, nbval runs notebooks on virtual TPUs. The fixture compiles for TPUs.

Every run of pytest in this environment loads this module. It imports nothing and does nothing
unless an option is given, a test asks for the fixture, or TensorFlow is a build for TPUs. When a
test imports such a build, it waits minutes for a missing TPU, and a libtpu that does not fit it
ends the process.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Container, Generator, Sequence
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
    "tpu_compiler",
]

_WIDGETS, _FRAMEWORK = "TPUNB_WIDGETS", "TPUNB_FRAMEWORK"
_WAIT = "wait"
_NBVAL = "nbval"  # the name of nbval's entry point
_KERNEL = "tpunb_kernel"
_FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
_PROBLEM = pytest.StashKey[str]()
_SPLITTING = ("load", "worksteal")  # with these, xdist would separate a notebook's cells


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--tpu` and `--tpu-keras`."""
    group = parser.getgroup("tpunb", "virtual TPUs (tpunb)")
    group.addoption(
        "--tpu",
        metavar="TYPE",
        default=None,
        help="Run the notebooks of --nbval or --nbval-lax on a virtual TPU: a type such as v5e-8 "
        "or v3-32, or a number of cores. No kernel needs to be installed.",
    )
    group.addoption(
        "--tpu-keras",
        metavar="2",
        type=int,
        choices=(2,),
        default=None,
        help="With --tpu, make tf.keras Keras 2 (tf_keras), for notebooks written for it.",
    )
    group.addoption(
        "--tpu-judge",
        choices=(_WAIT, "later", "off"),
        default=_WAIT,
        help="With --tpu, when the TPU's own compiler judges the programs of JAX notebooks: a call "
        "waits for its verdict (the default), the verdict comes later, or it is off.",
    )


# Run before a conftest.py imports TensorFlow.
@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Keep a TensorFlow for TPUs from waiting for a TPU, here and in processes of tests."""
    if not any(map(_is_installed, _FOR_TPU)):
        return
    from tpunb.errors import TpunbError
    from tpunb.machine.libtpu_releases import prepare_tpu_library

    try:
        prepare_tpu_library()
    except TpunbError as error:  # the tests may not import TensorFlow
        early_config.stash[_PROBLEM] = str(error)


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# Run after nbval's own hook, which settles its deprecated options.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the kernel for nbval for the duration of the run."""
    tpu = config.option.tpu
    if tpu is None:
        if config.option.tpu_keras is not None:
            raise pytest.UsageError("--tpu-keras is for virtual TPUs: add --tpu TYPE.")
        if config.option.tpu_judge != _WAIT:
            raise pytest.UsageError("--tpu-judge is for virtual TPUs: add --tpu TYPE.")
        return
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:  # an xdist worker, whose environment leads to the kernel
        _use(config, workerinput[_KERNEL])
        return
    from tpunb.errors import TpunbError
    from tpunb.notebook.kernels.specs import KernelOptions, temporary_kernel

    option = config.option
    if not config.pluginmanager.has_plugin(_NBVAL):
        raise pytest.UsageError("--tpu runs notebooks with nbval: pip install nbval")
    if not (option.nbval or option.nbval_lax):
        raise pytest.UsageError("--tpu is for notebooks: add --nbval or --nbval-lax.")
    if option.nbval_kernel_name:
        raise pytest.UsageError(
            f"--tpu brings its own kernel: remove --nbval-kernel-name={option.nbval_kernel_name}"
        )
    undo = contextlib.ExitStack()
    try:
        options = KernelOptions(option.tpu_keras, judge=option.tpu_judge)
        name = undo.enter_context(temporary_kernel(tpu, options))
    except TpunbError as error:
        raise pytest.UsageError(f"--tpu: {error}") from error
    config.add_cleanup(undo.close)
    _use(config, name)
    if getattr(config.option, "dist", None) in _SPLITTING:
        config.option.dist = "loadfile"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Set up the kernels of notebooks by environment variables, without affecting other tests."""
    nbval: Any = item.config.pluginmanager.get_plugin(_NBVAL)
    is_cell = nbval is not None and isinstance(item, nbval.IPyNbCell)
    # A setting by the user takes precedence.
    ours = _variables(item, os.environ) if is_cell else {}
    os.environ.update(ours)
    yield
    for name in ours:
        del os.environ[name]


def _variables(cell: Any, given: Container[str]) -> dict[str, str]:
    """Return the variables for the kernel of a notebook's cell, without those that are given."""
    variables = {_WIDGETS: "never"}  # nobody looks, even if pytest runs in a notebook
    if cell.config.option.tpu is not None and _FRAMEWORK not in given:
        from tpunb.notebook.files import code_cells
        from tpunb.notebook.used_framework import framework_of

        if (framework := framework_of(code_cells(cell.parent.nb))) is not None:
            variables[_FRAMEWORK] = framework
    return {name: value for name, value in variables.items() if name not in given}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the name of the kernel to an xdist worker."""
    if node.config.option.tpu is not None:
        node.workerinput[_KERNEL] = node.config.option.nbval_kernel_name


def _use(config: pytest.Config, kernel: str) -> None:
    config.option.nbval_kernel_name = kernel
    # The kernel is one of this environment, which nbval would replace with the plain kernel.
    config.option.nbval_current_env = config.option.current_env = False


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the lines that say where notebooks run, and which TensorFlow would end the process."""
    tpu = config.option.tpu
    problem = config.stash.get(_PROBLEM, None)
    lines = [] if problem is None else [f"tpunb: {problem}"]
    keras = "" if config.option.tpu_keras is None else ", and tf.keras is Keras 2"
    return (
        lines if tpu is None else [*lines, f"tpunb: notebooks run on a virtual TPU, {tpu}{keras}"]
    )


@pytest.fixture(scope="session")
def tpu_compiler() -> Callable[..., Any]:
    """`tpunb.compile`, which asks the TPU's own compiler; no TPU is needed.

    Skips the test, with the reason, if the compiler is missing and no recorded verdicts replace it.
    """
    from tpunb.compiler.ask import libtpu
    from tpunb.compiler.compile import compile as compile_for_tpus
    from tpunb.errors import TpunbError

    try:
        libtpu.require()
    except TpunbError as error:
        pytest.skip(f"{error.message} {error.fix}".strip())
    return compile_for_tpus


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Make an invalid notebook fail with a sentence instead of a traceback."""
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
    """Compare cells without the parts of the output that differ in every run on a TPU."""
    if config.option.tpu is None:
        return
    nbval: Any = config.pluginmanager.get_plugin(_NBVAL)
    for item in items:
        if isinstance(item, nbval.IPyNbCell):
            compare_without_logs(item)


_LOGS = re.compile(
    # TensorFlow's log through Python's logging, with the second and third line of
    # deprecations, ...
    r"^(?:WARNING:(?:tensorflow|absl):.*(?:\nInstructions for updating:\n.*)?"
    r"|(?:INFO|DEBUG):(?:tensorflow|absl):.*"
    # ... and the log of its C++ parts, with the time and a thread's number.
    r"|[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ .*"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] .*"
    r"|WARNING: All log messages before absl::InitializeLog.*)(?:\n|\Z)",
    re.MULTILINE,
)
# A TPU's worker has another address in every run.
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:8470\b")
_SAME = "ADDRESS:8470"
_PLAIN = "text/plain"


def compare_without_logs(cell: Any) -> None:
    """Make a cell of nbval compare the output of its program without TensorFlow's log.

    The log has dates, addresses and session numbers, and depends on the release.
    """
    compare = cell.compare_outputs

    def compare_outputs(test: Any, ref: Any, *args: Any, **kwargs: Any) -> Any:
        return compare(comparable(test), comparable(ref), *args, **kwargs)

    cell.compare_outputs = compare_outputs


def comparable(outputs: Sequence[Any]) -> list[Any]:
    """Return a cell's outputs, as in nbformat, without TensorFlow's log and a TPU's address.

    Streams that contain only the log are left out.
    """
    comparable_outputs = []
    for output in outputs:
        output = copy.deepcopy(output)
        if output.output_type == "stream":
            text = _LOGS.sub("", output.text)
            if not text.strip() and text != output.text:
                continue
            output.text = _ADDRESS.sub(_SAME, text)
        elif isinstance(plain := output.get("data", {}).get(_PLAIN), str):
            output.data[_PLAIN] = _ADDRESS.sub(_SAME, plain)
        comparable_outputs.append(output)
    return comparable_outputs
