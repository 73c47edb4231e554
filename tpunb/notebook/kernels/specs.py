"""Kernel specs: what tells Jupyter how to start a kernel with a virtual TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import write_file
from tpunb.errors import KernelError, nearest
from tpunb.machine.detect import refuse_simulation
from tpunb.machine.software import choose_keras_2, require_keras_2
from tpunb.tpu.types import Accelerator, accelerator


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledKernel:
    """A kernel of this package that Jupyter finds.

    Attributes:
        name: What `--kernel` and a notebook's metadata call it.
        tpu: The TPU type that it simulates.
        folder: Where its kernel spec is.
        replaced: Whether installing it took the place of another one.
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
    keras: int | None = None,
) -> InstalledKernel:
    """Adds a kernel with a virtual TPU to Jupyter.

    The kernel runs in the Python environment that this is called from.

    Args:
        tpu: A TPU type such as `"v5e-8"`, or a number of cores.
        name: The kernel's name; by default `tpunb-`, the type, and `-keras-2` with
            Keras 2. A kernel of this package that is called so is replaced.
        prefix: The environment to install into, such as `sys.prefix`; by default
            the user's own Jupyter folder.
        keras: 2 makes `tf.keras` Keras 2, for notebooks that were written for it.

    Returns:
        The kernel.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: Keras 2 is wanted, and not installed.
        KernelError: The name is not a valid one, belongs to a kernel of somebody
            else, or the folder cannot be written.
    """
    found = accelerator(tpu)
    if keras is not None:
        require_keras_2()
    name = _default_name(found, keras) if name is None else checked_name(name)
    manager = _manager()
    base = manager.user_kernel_dir
    if prefix is not None:
        base = Path(prefix, "share", "jupyter", "kernels").absolute()
    try:
        folder = folder_for(Path(base), name, manager.find_kernel_specs())
        replaced = tpu_of(folder) is not None
        logos = {file.name: file.read_bytes() for file in Path(__file__).parent.glob("logo-*")}
        write(folder, {**_spec_file(_spec(found, keras)), **logos})
    except OSError as error:
        raise KernelError(
            f"Cannot write {error.filename or base}: {error.strerror}.",
            fix="Install it for yourself alone (--user), or into this environment (--sys-prefix).",
        ) from error
    return InstalledKernel(name, found.name, folder, replaced)


def installed_kernels() -> list[InstalledKernel]:
    """The kernels of this package that Jupyter finds, by name."""
    found = _manager().find_kernel_specs()
    kernels = ((name, tpu_of(Path(folder)), Path(folder)) for name, folder in found.items())
    return sorted(
        (InstalledKernel(name, tpu, folder) for name, tpu, folder in kernels if tpu is not None),
        key=lambda kernel: kernel.name,
    )


def remove_kernel(name: str) -> InstalledKernel:
    """Removes a kernel that `install_kernel` has added.

    Files of somebody else in its folder stay, and so does what a folder that is a symbolic
    link leads to.

    Args:
        name: The kernel's name, or the TPU type that it was installed for.

    Returns:
        What was removed.

    Raises:
        KernelError: There is no kernel of that name, it is not of this package,
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
def temporary_kernel(tpu: str | int, *, keras: int | None = None) -> Iterator[str]:
    """A kernel with a virtual TPU that this process and those it starts find.

    Nothing is installed: the kernel spec is in a temporary folder, to which
    `JUPYTER_PATH` leads until the block ends.

    Args:
        tpu: A TPU type, or a number of cores. `TPUNB_TPU` does not override it.
        keras: 2 makes `tf.keras` Keras 2.

    Yields:
        The kernel's name.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: `TPUNB_REQUIRE_TPU` wants a real TPU; or Keras 2 is wanted, and
            not installed.
        KernelError: The packages that a kernel takes are not installed.
    """
    found = accelerator(tpu)
    refuse_simulation()
    require_packages("ipykernel", "jupyter_client")
    if keras is not None:
        require_keras_2()
    name = _default_name(found, keras)
    spec = _spec(found, keras, [_WITHOUT_HISTORY])
    spec["env"]["TPUNB_TPU"] = _argument(found)
    with _only_here(name, spec):
        yield name


@contextlib.contextmanager
def own_kernel() -> Iterator[str]:
    """A kernel of this Python, that this process and those it starts find.

    The name `python3` may lead to another Python, if the user has installed a kernel for it.

    Yields:
        The kernel's name.

    Raises:
        KernelError: The packages that a kernel takes are not installed.
    """
    require_packages("ipykernel", "jupyter_client")
    from ipykernel.kernelspec import get_kernel_dict

    with _only_here(_OWN, get_kernel_dict(extra_arguments=[_WITHOUT_HISTORY])):
        yield _OWN


@contextlib.contextmanager
def _only_here(name: str, spec: Mapping[str, Any]) -> Iterator[None]:
    """A block in which Jupyter finds a kernel, by `JUPYTER_PATH`."""
    with tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True) as made:
        write(Path(made, "kernels", name), _spec_file(spec))
        before = os.environ.get("JUPYTER_PATH")
        os.environ["JUPYTER_PATH"] = os.pathsep.join([made, *([before] if before else [])])
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("JUPYTER_PATH", None)
            else:
                os.environ["JUPYTER_PATH"] = before


def require_packages(*names: str) -> None:
    """Raises a `KernelError` that says what to install, if some packages are missing."""
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
    # It would tell that a prefix is not on Jupyter's path: the command line does.
    manager.log.setLevel(logging.ERROR)
    return manager


def _default_name(found: Accelerator, keras: int | None) -> str:
    return f"tpunb-{found.name.replace(' ', '-')}{'' if keras is None else '-keras-2'}"


def _argument(found: Accelerator) -> str:
    """The type in a form without spaces."""
    return str(found.num_devices) if found.family == "generic" else found.name


def _spec(found: Accelerator, keras: int | None, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The contents of kernel.json.

    The type is an argument, not a variable: Jupyter lets the variables of a spec
    win over those that the user sets, and `TPUNB_TPU` is the user's to set.
    """
    from ipykernel.kernelspec import get_kernel_dict

    ordinary = get_kernel_dict()  # what front ends may ask of it, by release
    called = f"of {found.name}" if found.family == "generic" else found.name
    # debugpy would warn about modules that CPython has frozen.
    environment = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    if keras is not None:
        called += ", Keras 2"
        choose_keras_2(environment)
    tpu = f"--tpu={_argument(found)}"
    return {
        **ordinary,
        "argv": [sys.executable, "-m", LAUNCHER, tpu, "-f", "{connection_file}", *extra],
        "display_name": f"Python {sys.version_info[0]} (virtual TPU {called})",
        "env": environment,
        "metadata": {**ordinary["metadata"], MARK: {"tpu": found.name}},
    }


def _spec_file(spec: Mapping[str, Any]) -> dict[str, bytes]:
    return {"kernel.json": (json.dumps(spec, indent=1) + "\n").encode()}


LAUNCHER = "tpunb.kernel_launcher"
_OWN = "tpunb-own"
_WITHOUT_HISTORY = "--HistoryManager.hist_file=:memory:"  # what it runs is nobody's history
MARK = "tpunb"
_SPEC = "kernel.json"
_FILES = (_SPEC, "logo-32x32.png", "logo-64x64.png", "logo-svg.svg")
# jupyter_client takes these characters. A dot at the start is a hidden folder, the kernels'
# own folder or the one above; one at the end is dropped by Windows.
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]+(?<!\.)")
_LONGEST = 200  # file systems have 255 for a name
_RESERVED = "python3"  # jupyter_client's NATIVE_KERNEL_NAME, which need not be a folder


def checked_name(name: str) -> str:
    """A kernel's name as Jupyter has it, in lower case; a `KernelError` if it is not valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise KernelError(
            f"{name!r} is not a valid name for a kernel.",
            fix=f"Use at most {_LONGEST} ASCII letters, digits and . _ -, with no dot at the start "
            "or end, such as my-tpu.",
        )
    return name.lower()


def tpu_of(folder: Path) -> str | None:
    """The TPU type of a kernel of this package, None for any other kernel.

    A kernel is of this package if it starts our launcher and its metadata say for which TPU.
    Where kernel.json is a symbolic link, the file belongs to something else.
    """
    if (folder / _SPEC).is_symlink():
        return None
    try:
        spec = json.loads((folder / _SPEC).read_text(encoding="utf-8"))
        tpu = spec["metadata"][MARK]["tpu"]
        ours = isinstance(tpu, str) and LAUNCHER in list(spec["argv"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return tpu if ours else None


def folder_for(base: Path, name: str, found: Mapping[str, str]) -> Path:
    """The folder to install a kernel into: a new or empty one, or that of a kernel of ours.

    Raises:
        KernelError: The name belongs to somebody else's kernel.
    """
    # A kernel elsewhere would not be deleted, but could not be chosen any more.
    if name == _RESERVED or (name in found and tpu_of(Path(found[name])) is None):
        where = Path(found[name]).parent if name in found else base
        raise _others(name, f"There is another kernel named {name!r} in {where}.")
    for folder in _called(base, name):
        if folder.is_symlink():  # writing would change what it leads to
            raise _others(name, f"{folder} is a symbolic link.")
        if tpu_of(folder) is None and not _is_empty(folder):
            raise _others(name, f"{folder} is there already, and it is not a kernel of tpunb.")
    return next(iter(_called(base, name)), base / name)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes a kernel spec's files, `kernel.json` first; others in the folder stay.

    Raises:
        OSError: It cannot be written. Then a kernel that was new is not there.
    """
    new = tpu_of(folder) is None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, content in files.items():
            if not (folder / name).is_symlink():  # a picture of the user's own
                write_file(folder / name, content)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):
                delete(folder)
        raise


def delete(folder: Path) -> None:
    """Deletes a kernel: our files, and their folder if nothing else is in it.

    Of a folder that is a symbolic link, the link alone is deleted.

    Raises:
        OSError: A file cannot be deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    # The kernel ends with its spec. Should the rest fail, it is no kernel any more.
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there are files of somebody else
        folder.rmdir()


def _called(base: Path, name: str) -> list[Path]:
    """The folders of that name; Jupyter ignores the case. Our spelling comes first."""
    try:
        folders = [path for path in base.iterdir() if path.name.lower() == name]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(folders, key=lambda path: (path.name != name, path.name))


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:  # a file, or a link to nowhere
        return False


def _others(name: str, message: str) -> KernelError:
    return KernelError(message, fix=f"Choose a name for this one: --name tpunb-{name}.")
