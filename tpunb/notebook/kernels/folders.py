"""The folders of kernel specs: which are ours, and nothing deleted that is not."""

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
