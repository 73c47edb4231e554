"""A separate Python environment for the compiler: JAX and libtpu in the user's cache folder.

It is made at the user's request and does not touch the user's JAX, libtpu or Keras. Its packages
are in a separate folder, and the compiler's process sees no others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tpunb._util.units import byte_count
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.machine.tested_releases import release

PACKAGES = ("jax", "jaxlib", "libtpu")

_RELEASES: Mapping[tuple[int, int], tuple[str, str, str]] = {
    (3, 11): ("0.10.2", "0.10.2", "0.0.52"),
    (3, 12): ("0.12.0.1", "0.12.0.1", "0.0.52"),
}
"""Releases that work together, by the oldest Python that has them, as in `tpunb[compiler]`.

A compiler reads what an older JAX exports, also its Pallas kernels. What a newer JAX exports, it
reads for some releases; a kernel of JAX 0.12 is not readable for JAX 0.10.2.
"""

DOWNLOAD = "280 MB"
DISK = 2**30
"""The bytes that the packages take on disk, about."""

_RECORD = "tpunb-compiler.json"
"""The record, written last. A folder without it was not made by tpunb."""

_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
_PROBE = """
import importlib.util, json, sys
own = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([sys.version_info[:2], own, importlib.util.find_spec("pip") is not None]))
"""
_SETTINGS = {"PIP_CONSTRAINT": "", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
"""The users' own settings of pip to override."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """An environment made by `install`.

    Attributes:
        folder: The folder of its packages.
        python: The Python that runs them.
        versions: The releases of JAX and libtpu, by package.
    """

    folder: Path
    python: str
    versions: Mapping[str, str]

    @property
    def problem(self) -> str:
        """The reason why the environment cannot be used; empty if it can."""
        if not fits(self.versions):
            need = listed(packages_for(sys.version_info[:2]))
            return f"it has {listed(self.versions)}, but this release of tpunb needs {need}"
        if not os.access(self.python, os.X_OK):
            return f"its Python, {self.python}, no longer exists"
        return ""

    @property
    def size(self) -> int:
        """The bytes on disk."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if not file.is_symlink())

    def command(self, code: str) -> list[str]:
        """Return the command that runs code with the environment's packages and no others."""
        path = f"import sys; sys.path.insert(0, {str(self.folder)!r}); {code}"
        return [self.python, "-I", "-S", "-W", "ignore", "-c", path]


def packages_for(python: tuple[int, ...]) -> dict[str, str]:
    """Return the newest releases that work together on a Python; the oldest ones if none do."""
    known = [oldest for oldest in _RELEASES if oldest <= python[:2]] or [min(_RELEASES)]
    return dict(zip(PACKAGES, _RELEASES[max(known)], strict=True))


def fits(versions: Mapping[str, str]) -> bool:
    """Return whether releases of the packages are among those that work together."""
    return tuple(versions.get(name, "") for name in PACKAGES) in _RELEASES.values()


def older_than(compiler: str, jax: str) -> str:
    """Return the sentence that the compiler's JAX is older than the notebook's; empty if not.

    Args:
        compiler: The release of the compiler's JAX.
        jax: The release of the notebook's JAX.
    """
    if release(compiler)[:2] >= release(jax)[:2]:
        return ""
    newest = max(_RELEASES)
    return (
        f"The compiler has JAX {compiler}, which is older. Install a newer compiler: "
        f"tpunb compiler install --python python{'.'.join(map(str, newest))}."
    )


def folder() -> Path:
    """Return the environment's folder, which need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        # Path.home() raises an error if the user has no home.
        cache = Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return Path(cache, "tpunb", "compiler")


def find() -> Environment | None:
    """Return the environment if the user has installed one, otherwise None."""
    try:
        record = json.loads((folder() / _RECORD).read_text(encoding="utf-8"))
        return Environment(folder(), record["python"], record["versions"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def why_not_here() -> CompilerUnavailableError | None:
    """Return the error that says why this machine cannot run libtpu, or None if it can."""
    if sys.platform == "linux" and platform.machine() in {"x86_64", "AMD64"}:
        return None
    return CompilerUnavailableError(
        "The TPU's compiler (libtpu) exists only for Linux on x86-64.",
        fix="Compile in Colab or on another Linux machine.",
    )


def install(python: str = "", *, say: Callable[[str], None] = lambda _: None) -> Environment:
    """Install the environment and replace an older one. pip's own output shows the progress.

    A failure or an interrupt changes nothing.

    Args:
        python: The Python to run it with. By default this Python or, if it is too old, another
            one on the path.
        say: Called with each next step.

    Raises:
        CompilerUnavailableError: The environment cannot be installed.
    """
    if error := why_not_here():
        raise error
    executable, runs, has_pip, version = _python(python)
    packages = packages_for(version)
    if has_pip:
        pip = [executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
    elif uv := shutil.which("uv"):
        pip = [uv, "pip", "install", "--python", executable]
    else:
        raise CompilerUnavailableError(
            f"{executable} has no pip.",
            fix="Install pip or uv, or name another Python: tpunb compiler install --python PATH",
        )
    target = folder()
    with _alone() as (new, old):
        new.mkdir()
        say(f"Installing {listed(packages)} with {executable} into {target}")
        say(f"This downloads {DOWNLOAD} and takes {byte_count(DISK)} of disk.")
        pins = [f"{name}=={version}" for name, version in packages.items()]
        done = subprocess.run([*pip, "--target", str(new), *pins], env={**os.environ, **_SETTINGS})
        if done.returncode:
            raise CompilerUnavailableError(
                f"Installing failed with exit code {done.returncode}: see above.",
                fix="Fix the error above and run tpunb compiler install again.",
            )
        installed = Environment(new, runs, packages)
        check = subprocess.run(
            installed.command("import jax, jaxlib, libtpu"),
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"},
        )
        if check.returncode:
            why = (check.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise CompilerUnavailableError(
                f"JAX and libtpu are installed, but {runs} cannot import them: {why}",
                fix="Name another Python: tpunb compiler install --python PATH",
            )
        (new / _RECORD).write_text(
            json.dumps({"python": runs, "versions": dict(packages)}), encoding="utf-8"
        )
        if target.exists():
            target.rename(old)
        new.rename(target)
    return dataclasses.replace(installed, folder=target)


def remove() -> Path | None:
    """Delete the environment and the remains of interrupted installations.

    Returns:
        The environment's folder, or None if there was none.

    Raises:
        CompilerUnavailableError: The folder has no record of an installation.
    """
    target = folder()
    if not target.parent.is_dir():
        return None
    with _alone() as (_, old):
        existed = target.exists()
        if existed:
            target.rename(old)
    with contextlib.suppress(OSError):  # it has other files, or another installation begins
        target.with_suffix(".lock").unlink()
        target.parent.rmdir()
    return target if existed else None


@contextlib.contextmanager
def _alone() -> Iterator[tuple[Path, Path]]:
    """Keep other installations out, and raise an error if another program made the folder.

    Yields:
        A path for a new folder, and a path to move the former folder to, so that each folder is
        complete or missing. Both are deleted at the end.
    """
    import fcntl  # not on Windows

    target = folder()
    both = target.with_suffix(".partial"), target.with_suffix(".old")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CompilerUnavailableError(
                "Another process is installing or removing the compiler.",
                fix="Wait until it has finished.",
            ) from None
        with contextlib.ExitStack() as undo:
            for path in both:
                shutil.rmtree(path, ignore_errors=True)  # the remains of a killed process
                undo.callback(shutil.rmtree, path, ignore_errors=True)
            if target.exists() and not (target / _RECORD).is_file():
                raise CompilerUnavailableError(
                    f"{target} was not made by tpunb compiler install.",
                    fix="Move it away, then try again.",
                )
            yield both


def _python(wanted: str) -> tuple[str, str, bool, tuple[int, int]]:
    """Return a new enough Python, the Python without its packages, if it has pip, its version."""
    names = [wanted] if wanted else [sys.executable, *_PYTHONS]
    for name in names:
        executable = shutil.which(name)
        if executable is None:
            continue
        try:
            asked = subprocess.run([executable, "-c", _PROBE], capture_output=True, text=True)
            version, runs, has_pip = json.loads(asked.stdout)
        except (OSError, ValueError):  # not a Python, or a pyenv shim without a Python
            continue
        if tuple(version) >= min(_RELEASES):
            return executable, runs, has_pip, tuple(version)
    raise CompilerUnavailableError(
        "The TPU's compiler needs Python 3.11 or later, but "
        f"{f'{wanted} is not such a Python' if wanted else 'the path has none'}.",
        fix="Install such a Python and name it: tpunb compiler install --python PATH",
    )


def listed(versions: Mapping[str, str]) -> str:
    """Return packages and their releases, in words."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
