"""An ordinary IPython kernel that has a virtual TPU.

TensorFlow is not imported here. When a cell imports TensorFlow, its names answer for the virtual
TPU. If that is not possible, the import fails, so that a notebook for a TPU never continues without
a TPU.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from tpunb.errors import AcceleratorTypeError, KernelError, TpunbError
from tpunb.machine.software import chooses_keras_2, require_keras_2
from tpunb.tpu.types import accelerator
from tpunb.virtual.import_tensorflow import QuietImport

_OPTION = "--tpu="
_VARIABLE = "TPUNB_TPU"


def main() -> None:
    """Start the kernel with the process's arguments."""
    sys.argv[1:] = prepare(sys.argv[1:], os.environ)
    _application().launch_instance()


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Prepare the process so that the import of TensorFlow brings a virtual TPU.

    Args:
        arguments: The kernel's arguments; `--tpu=TYPE` chooses the TPU, unless
            `TPUNB_TPU` does.
        environment: The process's environment variables; missing ones are added.

    Returns:
        The arguments for ipykernel.
    """
    types = [text.removeprefix(_OPTION) for text in arguments if text.startswith(_OPTION)]
    tpu = environment.get(_VARIABLE, "").strip() or "".join(types[-1:])
    # Otherwise every notebook would show TensorFlow's messages about missing GPUs.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # For %tpu_connect without arguments, and for processes that a cell starts.
    environment[_VARIABLE] = tpu
    gate = Gate()
    try:
        _install(tpu)
        if chooses_keras_2(environment):
            require_keras_2()
    except TpunbError as error:
        gate.error = error
    sys.meta_path.insert(0, gate)
    return [text for text in arguments if not text.startswith(_OPTION)]


def _application() -> Any:
    """Return ipykernel's application, with a check of every cell that has run."""
    from ipykernel.kernelapp import IPKernelApp

    class TpuKernelApp(IPKernelApp):
        def initialize(self, argv: list[str] | None = None) -> None:
            super().initialize(argv)
            if self.shell is not None:
                from tpunb.notebook.explain_hook import Explaining

                watch(self.shell)
                Explaining(self.shell, lambda explanation: None).install()

    return TpuKernelApp


def watch(shell: Any) -> None:
    """Fail each cell that does not get its virtual TPU, even if the cell catches the error.

    Many notebooks look for a TPU in a `try` and continue on the CPU without a TPU. In this kernel
    they were started for the TPU, so the TPU's error is the cell's error.
    """
    shown: list[BaseException] = []

    def look(result: Any) -> None:
        # This error keeps TensorFlow's names from answering for the virtual TPU.
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


def _install(tpu: str) -> None:
    from tpunb.virtual import install_when_imported

    try:
        accelerator(tpu)
    except AcceleratorTypeError as error:
        raise KernelError(
            f"This kernel has a virtual TPU, and {_VARIABLE} is {tpu!r}: {error}",
            fix=f"Set {_VARIABLE} to a TPU type before the kernel starts, or unset it.",
        ) from error
    install_when_imported(tpu, environment=True, required=True)


class Gate(QuietImport):
    """An import hook that refuses TensorFlow without a virtual TPU, also at a second attempt.

    Attributes:
        error: The reason why the virtual TPU is missing; None so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return TensorFlow's spec from the other finders, or raise the stored `error`."""
        if fullname == "tensorflow" and self.error is not None:
            raise self.error.with_traceback(None)
        return super().find_spec(fullname, path, target)

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load TensorFlow, and keep the reason if it has no virtual TPU."""
        try:
            super().load(module, load)
        except TpunbError as error:
            self.error = error
            raise
