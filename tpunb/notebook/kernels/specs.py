"""Kernel specs, which tell Jupyter how to start a kernel with a virtual TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb.errors import KernelError, nearest
from tpunb.machine.detect import refuse_simulation
from tpunb.machine.framework import FRAMEWORK_VARIABLE, JAX, NAMES
from tpunb.machine.keras_2 import choose_keras_2, require_keras_2
from tpunb.notebook.kernels.spec_folders import (
    LAUNCHER,
    MARK,
    checked_name,
    delete,
    folder_for,
    tpu_of,
    write,
)
from tpunb.tpu.types import Accelerator, accelerator

_OWN = "tpunb-own"
_WITHOUT_HISTORY = "--HistoryManager.hist_file=:memory:"  # keep its code out of the user's history


@dataclasses.dataclass(frozen=True, slots=True)
class KernelOptions:
    """The settings of a kernel with a virtual TPU.

    Attributes:
        keras: 2 makes `tf.keras` Keras 2, for notebooks that were written for it.
        framework: `"tensorflow"` or `"jax"`; None for the first that is imported.
        judge: When the TPU's own compiler judges JAX's programs: `"wait"`, `"later"` or `"off"`.

    Raises:
        KernelError: Keras 2 is for JAX.
    """

    keras: int | None = None
    framework: str | None = None
    judge: str = "wait"

    def __post_init__(self) -> None:
        if self.keras is not None and self.framework == JAX:
            raise KernelError(
                "Keras 2 is TensorFlow's: JAX needs Keras 3.",
                fix="Remove --keras 2, or choose --framework tensorflow.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The options that the kernel's name shows: `("JAX",)`."""
        keras = ("Keras 2",) if self.keras is not None else ()
        return (*((NAMES[self.framework],) if self.framework else ()), *keras)

    @property
    def arguments(self) -> list[str]:
        """The kernel's arguments."""
        framework = [f"--framework={self.framework}"] if self.framework else []
        return [*framework, *([f"--judge={self.judge}"] if self.judge != "wait" else [])]


_PLAIN = KernelOptions()


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledKernel:
    """A kernel of tpunb that Jupyter finds.

    Attributes:
        name: The name in `--kernel` and in a notebook's metadata.
        tpu: The TPU type that the kernel simulates.
        folder: The folder of the kernel spec.
        replaced: Whether the installation replaced another kernel.
    """

    name: str
    tpu: str
    folder: Path
    replaced: bool = False


def install_kernel(
    tpu: str | int,
    *,
    name: str | None = None,
    prefix: str | os.PathLike[str] | None = None,
    options: KernelOptions = _PLAIN,
) -> InstalledKernel:
    """Add a kernel with a virtual TPU to Jupyter.

    The kernel runs in the Python environment of the caller.

    Args:
        tpu: A TPU type such as `"v5e-8"`, or a number of cores.
        name: The kernel's name; by default `tpunb-`, the type, and the options: `-jax`,
            `-keras-2`. An existing tpunb kernel of this name is replaced.
        prefix: The environment to install into, such as `sys.prefix`; by default
            the user's own Jupyter folder.
        options: What the kernel is made for.

    Returns:
        The kernel.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: Keras 2 is requested, but is not installed.
        KernelError: The name is not valid, or belongs to another package's kernel,
            or the folder cannot be written.
    """
    simulated = accelerator(tpu)
    if options.keras is not None:
        require_keras_2()
    name = _default_name(simulated, options) if name is None else checked_name(name)
    manager = _manager()
    base = manager.user_kernel_dir
    if prefix is not None:
        base = Path(prefix, "share", "jupyter", "kernels").absolute()
    try:
        folder = folder_for(Path(base), name, manager.find_kernel_specs())
        replaced = tpu_of(folder) is not None
        logos = {file.name: file.read_bytes() for file in Path(__file__).parent.glob("logo-*")}
        write(folder, {**_spec_file(_spec(simulated, options)), **logos})
    except OSError as error:
        raise KernelError(
            f"Cannot write {error.filename or base}: {error.strerror}.",
            fix="Install it for yourself alone (--user), or into this environment (--sys-prefix).",
        ) from error
    return InstalledKernel(name, simulated.name, folder, replaced)


def installed_kernels() -> list[InstalledKernel]:
    """Return the kernels of tpunb that Jupyter finds, by name."""
    folders = _manager().find_kernel_specs()
    kernels = ((name, tpu_of(Path(folder)), Path(folder)) for name, folder in folders.items())
    return sorted(
        (InstalledKernel(name, tpu, folder) for name, tpu, folder in kernels if tpu is not None),
        key=lambda kernel: kernel.name,
    )


def remove_kernel(name: str) -> InstalledKernel:
    """Remove a kernel that `install_kernel` has added.

    Other files in the kernel's folder stay. If the folder is a symbolic link, the link's target
    stays too.

    Args:
        name: The kernel's name, or the TPU type that it was installed for.

    Returns:
        The removed kernel.

    Raises:
        KernelError: No kernel has that name, it is not a kernel of tpunb,
            or it cannot be deleted.
    """
    manager = _manager()
    ours = {kernel.name: kernel for kernel in installed_kernels()}
    kernel = ours.get(name.lower()) or ours.get(f"tpunb-{name.lower()}")
    if kernel is None:
        if name.lower() in manager.find_kernel_specs():
            raise KernelError(
                f"The kernel {name!r} was not installed by tpunb.",
                fix=f"Remove it with Jupyter, if you mean to: jupyter kernelspec remove {name}",
            )
        near = " or ".join(nearest(name, list(ours)))
        fix = f"Did you mean {near}?" if near else "See all with `tpunb kernel list`."
        raise KernelError(f"There is no kernel {name!r} of tpunb.", fix=fix)
    try:
        delete(kernel.folder)
    except OSError as error:
        raise KernelError(f"Cannot remove {kernel.folder}: {error.strerror}.") from error
    return kernel


@contextlib.contextmanager
def temporary_kernel(tpu: str | int, options: KernelOptions = _PLAIN) -> Iterator[str]:
    """Make a kernel with a virtual TPU, which this process and its child processes find.

    Nothing is installed. The kernel spec is in a temporary folder, and `JUPYTER_PATH` leads
    until the block ends.

    Args:
        tpu: A TPU type, or a number of cores. `TPUNB_TPU` does not override it.
        options: What the kernel is made for. `TPUNB_FRAMEWORK` is for a kernel without a framework.

    Yields:
        The kernel's name.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU; or Keras 2 is requested, but is
            not installed.
        KernelError: The packages that a kernel needs are not installed.
    """
    simulated = accelerator(tpu)
    refuse_simulation()
    require_packages("ipykernel", "jupyter_client")
    if options.keras is not None:
        require_keras_2()
    name = _default_name(simulated, options)
    spec = _spec(simulated, options, [_WITHOUT_HISTORY])
    spec["env"]["TPUNB_TPU"] = _argument(simulated)
    if options.framework is not None:
        spec["env"][FRAMEWORK_VARIABLE] = options.framework
    with _only_here(name, spec):
        yield name


@contextlib.contextmanager
def own_kernel() -> Iterator[str]:
    """Make a kernel of this Python, which this process and its child processes find.

    The name `python3` may lead to another Python, if the user has installed a kernel for it.

    Yields:
        The kernel's name.

    Raises:
        KernelError: The packages that a kernel needs are not installed.
    """
    require_packages("ipykernel", "jupyter_client")
    from ipykernel.kernelspec import get_kernel_dict

    with _only_here(_OWN, get_kernel_dict(extra_arguments=[_WITHOUT_HISTORY])):
        yield _OWN


@contextlib.contextmanager
def _only_here(name: str, spec: Mapping[str, Any]) -> Iterator[None]:
    """Let Jupyter find a kernel inside a block, by `JUPYTER_PATH`."""
    with tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True) as directory:
        write(Path(directory, "kernels", name), _spec_file(spec))
        before = os.environ.get("JUPYTER_PATH")
        os.environ["JUPYTER_PATH"] = os.pathsep.join([directory, *([before] if before else [])])
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("JUPYTER_PATH", None)
            else:
                os.environ["JUPYTER_PATH"] = before


def require_packages(*names: str) -> None:
    """Raise a `KernelError` with the install command if some packages are missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise KernelError(
            f"A kernel needs {', '.join(missing)}.",
            fix='Install what it needs: pip install "tpunb[run]".',
        )


def _manager() -> Any:
    require_packages("ipykernel", "jupyter_client")
    import logging

    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    # The manager would warn that a prefix is not on Jupyter's path. The command line says this.
    manager.log.setLevel(logging.ERROR)
    return manager


def _default_name(simulated: Accelerator, options: KernelOptions) -> str:
    return "-".join(["tpunb", simulated.name, *options.names]).replace(" ", "-").lower()


def _argument(simulated: Accelerator) -> str:
    """Return the type in a form without spaces."""
    return str(simulated.num_devices) if simulated.family == "generic" else simulated.name


def _spec(
    simulated: Accelerator, options: KernelOptions, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the contents of kernel.json.

    The type is an argument, not a variable, because Jupyter lets the variables of a spec override
    the user's variables. `TPUNB_TPU` must remain the user's choice.
    """
    from ipykernel.kernelspec import get_kernel_dict

    ordinary = get_kernel_dict()  # keys that front ends may read, by release
    called = f"of {simulated.name}" if simulated.family == "generic" else simulated.name
    # Without this, debugpy would warn about modules that CPython has frozen.
    environment = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    if options.keras is not None:
        choose_keras_2(environment)
    called = ", ".join([called, *options.names])
    ours = [f"--tpu={_argument(simulated)}", *options.arguments]
    return {
        **ordinary,
        "argv": [sys.executable, "-m", LAUNCHER, *ours, "-f", "{connection_file}", *extra],
        "display_name": f"Python {sys.version_info[0]} (virtual TPU {called})",
        "env": environment,
        "metadata": {**ordinary["metadata"], MARK: {"tpu": simulated.name}},
    }


def _spec_file(spec: Mapping[str, Any]) -> dict[str, bytes]:
    return {"kernel.json": (json.dumps(spec, indent=1) + "\n").encode()}
