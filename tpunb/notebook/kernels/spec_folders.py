"""Folders of kernel specs: whose kernel a folder has, and how its files come and go."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from tpunb._util.atomic_files import write_file
from tpunb.errors import KernelError

LAUNCHER = "tpunb.kernel_launcher"
MARK = "tpunb"
_SPEC = "kernel.json"
_FILES = (_SPEC, "logo-32x32.png", "logo-64x64.png", "logo-svg.svg")
# jupyter_client accepts these characters. A dot at the start makes a hidden folder, or means the
# kernels' own folder or its parent. Windows drops a dot at the end.
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]+(?<!\.)")
_LONGEST = 200  # file systems allow 255 characters for a name
_RESERVED = "python3"  # jupyter_client's NATIVE_KERNEL_NAME, which may have no folder


def checked_name(name: str) -> str:
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


def tpu_of(folder: Path) -> str | None:
    """Return the TPU type of a tpunb kernel, or None for any other kernel.

    A kernel belongs to tpunb if it starts tpunb's launcher and its metadata name the TPU type. If
    kernel.json is a symbolic link, the file belongs to another program.
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


def folder_for(base: Path, name: str, folders: Mapping[str, str]) -> Path:
    """Return the folder to install a kernel into: new, empty, or the folder of a tpunb kernel.

    Raises:
        KernelError: The name belongs to another package's kernel.
    """
    # A kernel elsewhere would not be deleted, but the user could no longer choose it.
    if name == _RESERVED or (name in folders and tpu_of(Path(folders[name])) is None):
        where = Path(folders[name]).parent if name in folders else base
        raise _others(name, f"There is another kernel named {name!r} in {where}.")
    for folder in _called(base, name):
        if folder.is_symlink():  # writing would change the link's target
            raise _others(name, f"{folder} is a symbolic link.")
        if tpu_of(folder) is None and not _is_empty(folder):
            raise _others(name, f"{folder} is there already, and it is not a kernel of tpunb.")
    return next(iter(_called(base, name)), base / name)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a kernel spec's files, `kernel.json` first; other files in the folder stay.

    Raises:
        OSError: The files cannot be written. A new kernel is then removed.
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
    """Delete a kernel: its files, and their folder if it has no other files.

    If the folder is a symbolic link, only the link is deleted.

    Raises:
        OSError: A file cannot be deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    # Delete the spec first, because it makes the kernel. If the rest fails, the kernel is gone.
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder has other files
        folder.rmdir()


def _called(base: Path, name: str) -> list[Path]:
    """Return the folders of that name, exact spelling first, because Jupyter ignores the case."""
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
