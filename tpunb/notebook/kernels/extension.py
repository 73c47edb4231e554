"""The IPython extension that gives an ordinary kernel its virtual TPU.

tpunb's kernel specs load it when a kernel starts. No framework is imported here. When a cell
imports TensorFlow or JAX, the names of the first of them answer for the virtual TPU. If that is not
possible, the import fails, or the first use of JAX, so that a notebook for a TPU never continues
without a TPU.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from tpunb.errors import AcceleratorTypeError, KernelError, TpunbError
from tpunb.machine.framework import FRAMEWORK_VARIABLE, FRAMEWORKS, JAX, TENSORFLOW
from tpunb.machine.import_tensorflow import QuietImport
from tpunb.machine.keras_2 import chooses_keras_2, require_keras_2
from tpunb.notebook.kernels.specs import DRY_REPORT_VARIABLE, KERNEL_VARIABLE
from tpunb.notebook.used_framework import framework_of
from tpunb.tpu.types import accelerator

_TPU = "TPUNB_TPU"


def load_ipython_extension(shell: Any) -> None:
    """Give the kernel its virtual TPU, and check every cell that has run."""
    from tpunb.notebook.explain_hook import Explaining

    prepare(os.environ)
    watch(shell)
    choose_by_cells(shell)
    Explaining(shell, lambda explanation: None).install()
    if report := os.environ.pop(DRY_REPORT_VARIABLE, ""):
        shell.events.register("post_run_cell", lambda result: _save_dry_report(report))


def prepare(environment: MutableMapping[str, str]) -> None:
    """Prepare the process so that the import of a framework brings a virtual TPU.

    Args:
        environment: The process's environment variables; missing ones are added. `TPUNB_KERNEL` has
            the kernel's TPU type and options; `TPUNB_TPU` and `TPUNB_FRAMEWORK` override them.
    """
    options = json.loads(environment.pop(KERNEL_VARIABLE))
    tpu = environment.get(_TPU, "").strip() or options["tpu"]
    framework = environment.get(FRAMEWORK_VARIABLE, "").strip() or options["framework"]
    # Otherwise every notebook would show TensorFlow's messages about missing GPUs.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # For %tpu_connect without arguments, and for processes that a cell starts.
    environment[_TPU] = tpu
    gate = Gate()
    try:
        _install(tpu, framework, options["judge"], dry=options.get("dry", False))
    except TpunbError as error:
        gate.errors = dict.fromkeys(FRAMEWORKS, error)
    else:
        gate.refuse_without_keras_2(environment)
    sys.meta_path.insert(0, gate)


def watch(shell: Any) -> None:
    """Fail each cell that does not get its virtual TPU, even if the cell catches the error.

    Many notebooks look for a TPU in a `try` and continue on the CPU without a TPU. In this kernel
    they were started for the TPU, so the TPU's error is the cell's error.
    """
    shown: list[BaseException] = []

    def look(result: Any) -> None:
        # This error keeps the framework's names from answering for the virtual TPU.
        state = sys.modules.get("tpunb.virtual.installation")
        failure = getattr(state, "failure", None)
        error = None if failure is None else failure()
        if error is None or error in shown:
            return
        shown.append(error)
        if result is None or not result.success:
            return  # the cell has failed already
        result.error_in_exec = error
        shell.showtraceback((type(error), error, error.__traceback__))

    shell.events.register("post_run_cell", look)


def choose_by_cells(shell: Any) -> None:
    """Let the first cell that imports a framework choose it: a cell may import both."""

    def look(cell: Any) -> None:
        from tpunb.virtual.installer import choose_framework

        choose_framework(lambda: framework_of([cell.raw_cell]))

    shell.events.register("pre_run_cell", look)


def _save_dry_report(path: str) -> None:
    from tpunb.connection.dry_report import save_dry_report

    save_dry_report(path)


def _install(tpu: str, framework: str | None, judge: str, *, dry: bool) -> None:
    from tpunb.virtual import install_when_imported

    try:
        accelerator(tpu)
    except AcceleratorTypeError as error:
        raise KernelError(
            f"This kernel has a virtual TPU, and {_TPU} is {tpu!r}: {error}",
            fix=f"Set {_TPU} to a TPU type before the kernel starts, or unset it.",
        ) from error
    options: dict[str, Any] = {"framework": framework, "judge": judge, "dry": dry}
    install_when_imported(tpu, environment=True, required=True, **options)


class Gate(QuietImport):
    """An import hook that refuses a framework without a virtual TPU, also at a second attempt.

    Attributes:
        errors: The reasons why frameworks have no virtual TPU, by framework.
    """

    def __init__(self) -> None:
        super().__init__(JAX)
        self.errors: dict[str, TpunbError] = {}

    def refuse_without_keras_2(self, environment: Mapping[str, str]) -> None:
        """Refuse TensorFlow if the environment chooses Keras 2, which is not installed."""
        try:
            if chooses_keras_2(environment):
                require_keras_2()
        except TpunbError as error:
            self.errors[TENSORFLOW] = error

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a framework's spec from the other finders, or raise the stored error."""
        if (error := self.errors.get(fullname)) is not None:
            raise error.with_traceback(None)
        return super().find_spec(fullname, path, target)

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load a framework, and keep the reason if it has no virtual TPU."""
        try:
            super().load(module, load)
        except TpunbError as error:
            self.errors[module.__name__] = error
            raise
