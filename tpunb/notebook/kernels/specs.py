"""Kernel specs, which tell Jupyter how to start a kernel with a virtual TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb.errors import KernelError, nearest
from tpunb.machine.detect import refuse_simulation
from tpunb.machine.framework import FRAMEWORK_VARIABLE, JAX, NAMES
from tpunb.machine.keras_2 import choose_keras_2, require_keras_2
from tpunb.tpu.types import Accelerator, accelerator

EXTENSION = "tpunb.notebook.kernels.extension"
KERNEL_VARIABLE = "TPUNB_KERNEL"
"""The environment variable that gives the extension a kernel's TPU type and options."""

DRY_REPORT_VARIABLE = "TPUNB_DRY_REPORT"
"""The environment variable with the file that a dry run writes its report to."""

_MARK = "tpunb"
# jupyter_client also accepts dots alone, which mean the kernels' own folder or its parent.
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]+(?<!\.)")
_LONGEST = 200  # file systems allow 255 characters for a name
_OWN = "tpunb-own"
_WITHOUT_HISTORY = "--HistoryManager.hist_file=:memory:"  # keep its code out of the user's history


@dataclasses.dataclass(frozen=True, slots=True)
class KernelOptions:
    """The settings of a kernel with a virtual TPU.

    Attributes:
        keras: 2 makes `tf.keras` Keras 2, for notebooks that were written for it.
        framework: `"tensorflow"` or `"jax"`; None for the first that is imported.
        judge: When the TPU's own compiler judges JAX's programs: `"wait"`, `"later"` or `"off"`.
        dry: Whether large calls of JAX are judged and not computed.

    Raises:
        KernelError: Keras 2 is for JAX.
    """

    keras: int | None = None
    framework: str | None = None
    judge: str = "wait"
    dry: bool = False

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
    name = _default_name(simulated, options) if name is None else _checked_name(name)
    manager = _manager()
    base = Path(manager.user_kernel_dir)
    if prefix is not None:
        base = Path(prefix, "share", "jupyter", "kernels").absolute()
    folder = base / name
    _refuse_others(name, [folder, Path(manager.find_kernel_specs().get(name, folder))])
    replaced = folder.exists()
    try:
        with tempfile.TemporaryDirectory(prefix="tpunb-") as parent:
            source = Path(parent, name)  # it gives the installed folder its permissions
            _write(source, _spec(simulated, options))
            manager.install_kernel_spec(
                str(source), name, user=prefix is None, prefix=prefix and os.fspath(prefix)
            )
    except OSError as error:
        raise KernelError(
            f"Cannot write {error.filename or base}: {error.strerror}.",
            fix="Install it for yourself alone (--user), or into this environment (--sys-prefix).",
        ) from error
    return InstalledKernel(name, simulated.name, folder, replaced)


def installed_kernels() -> list[InstalledKernel]:
    """Return the kernels of tpunb that Jupyter finds, by name."""
    folders = _manager().find_kernel_specs()
    kernels = ((name, _tpu_of(Path(folder)), Path(folder)) for name, folder in folders.items())
    return sorted(
        (InstalledKernel(name, tpu, folder) for name, tpu, folder in kernels if tpu is not None),
        key=lambda kernel: kernel.name,
    )


def remove_kernel(name: str) -> InstalledKernel:
    """Remove a kernel that `install_kernel` has added, with its folder.

    If the folder is a symbolic link, only the link is removed.

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
        manager.remove_kernel_spec(kernel.name)
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
        _write(Path(directory, "kernels", name), spec)
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

    The type is in a variable of its own, because Jupyter lets the variables of a spec override the
    user's variables. `TPUNB_TPU` must remain the user's choice.
    """
    from ipykernel.kernelspec import get_kernel_dict

    ordinary = get_kernel_dict()  # keys that front ends may read, by release
    called = f"of {simulated.name}" if simulated.family == "generic" else simulated.name
    chosen: dict[str, Any] = {"framework": options.framework, "judge": options.judge}
    chosen |= {"dry": True} if options.dry else {}
    environment = {
        # Without this, debugpy would warn about modules that CPython has frozen.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        KERNEL_VARIABLE: json.dumps({"tpu": _argument(simulated), **chosen}),
    }
    if options.keras is not None:
        choose_keras_2(environment)
    called = ", ".join([called, *options.names])
    return {
        **ordinary,
        "argv": [*ordinary["argv"], f"--ext={EXTENSION}", *extra],
        "display_name": f"Python {sys.version_info[0]} (virtual TPU {called})",
        "env": environment,
        "metadata": {**ordinary["metadata"], _MARK: {"tpu": simulated.name}},
    }


def _write(folder: Path, spec: Mapping[str, Any]) -> None:
    """Write `kernel.json` and the logos into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    for logo in Path(__file__).parent.glob("logo-*"):
        shutil.copy(logo, folder)


def _checked_name(name: str) -> str:
    """Return a kernel's name in lower case, as Jupyter has it.

    Raises:
        KernelError: The name is not valid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise KernelError(
            f"{name!r} is not a valid name for a kernel.",
            fix=f"Use at most {_LONGEST} ASCII letters, digits and . _ -, with no dot at the start "
            "or end, such as my-tpu.",
        )
    return name.lower()


def _tpu_of(folder: Path) -> str | None:
    """Return the TPU type of a tpunb kernel, or None for any other kernel.

    A kernel belongs to tpunb if it loads tpunb's extension and its metadata name the TPU type.
    """
    try:
        spec = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
        tpu = spec["metadata"][_MARK]["tpu"]
        ours = isinstance(tpu, str) and f"--ext={EXTENSION}" in list(spec["argv"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return tpu if ours else None


def _refuse_others(name: str, folders: Sequence[Path]) -> None:
    """Refuse a name whose folder is not a kernel of tpunb: Jupyter deletes the folder first.

    A kernel in another place would stay, but the user could no longer choose it.

    Raises:
        KernelError: One of the folders belongs to somebody else.
    """
    for folder in folders:
        if os.path.lexists(folder) and (folder.is_symlink() or _tpu_of(folder) is None):
            raise KernelError(
                f"There is already something else named {name!r} in {folder.parent}.",
                fix=f"Choose a name for this one: --name tpunb-{name}.",
            )
