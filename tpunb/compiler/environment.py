"""An environment for the compiler alone: JAX and libtpu in the user's cache folder.

It is made when the user asks for it and touches no JAX, libtpu or Keras of theirs: packages lie in
a folder of their own, and the compiler's process sees no others.
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

from tpunb.compiler.program import CompilerUnavailableError

PACKAGES: Mapping[str, str] = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.52"}
"""Releases that fit each other, the same as `tpunb[compiler]`'s."""

_RECORD = "tpunb-compiler.json"
"""Written last: without it, a folder is not an environment of ours."""

_OLDEST_PYTHON = (3, 11)
_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
_PROBE = """
import importlib.util, json, sys
own = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([sys.version_info[:2], own, importlib.util.find_spec("pip") is not None]))
"""
_SETTINGS = {"PIP_CONSTRAINT": "", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
"""What users set for pip in their own environments."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """An environment that `install` has made.

    Attributes:
        folder: Where its packages are.
        python: The Python that runs them.
        versions: The releases of JAX and libtpu, by package.
    """

    folder: Path
    python: str
    versions: Mapping[str, str]

    @property
    def problem(self) -> str:
        """The reason why it cannot be used; empty if it can."""
        if dict(self.versions) != dict(PACKAGES):
            have, need = (listed(versions) for versions in (self.versions, PACKAGES))
            return f"it has {have}, and this release of tpunb needs {need}"
        if not os.access(self.python, os.X_OK):
            return f"its Python, {self.python}, no longer exists"
        return ""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if not file.is_symlink())

    def command(self, code: str) -> list[str]:
        """The command that runs code with its packages and no others."""
        path = f"import sys; sys.path.insert(0, {str(self.folder)!r}); {code}"
        return [self.python, "-I", "-S", "-W", "ignore", "-c", path]


def folder() -> Path:
    """The folder of the environment, which need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        # Path's own raises an error where a user has no home.
        cache = Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return Path(cache, "tpunb", "compiler")


def find() -> Environment | None:
    """The environment, if the user has installed one."""
    try:
        record = json.loads((folder() / _RECORD).read_text(encoding="utf-8"))
        return Environment(folder(), record["python"], record["versions"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def why_not_here() -> CompilerUnavailableError | None:
    """Return why this machine cannot run libtpu; None if it can."""
    if sys.platform == "linux" and platform.machine() in {"x86_64", "AMD64"}:
        return None
    return CompilerUnavailableError(
        "The TPU's compiler (libtpu) has wheels for Linux on x86-64 only.",
        fix="Compile in Colab or on another Linux machine.",
    )


def install(python: str = "", *, say: Callable[[str], None] = lambda _: None) -> Environment:
    """Installs the environment, in place of an older one; pip's own output shows the progress.

    A failure or an interrupt leaves everything as it was.

    Args:
        python: The Python to run it with; by default this one, or if it is too old another on
            the path.
        say: Is called with what is done next.

    Raises:
        CompilerUnavailableError: It cannot be installed.
    """
    if error := why_not_here():
        raise error
    found, runs, has_pip = _python(python)
    if has_pip:
        pip = [found, "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
    elif uv := shutil.which("uv"):
        pip = [uv, "pip", "install", "--python", found]
    else:
        raise CompilerUnavailableError(
            f"{found} has no pip.",
            fix="Install pip or uv, or name another Python: tpunb compiler install --python PATH",
        )
    target = folder()
    with _alone() as (new, old):
        new.mkdir()
        say(f"Installing {listed(PACKAGES)} with {found} into {target}")
        pins = [f"{name}=={version}" for name, version in PACKAGES.items()]
        done = subprocess.run([*pip, "--target", str(new), *pins], env={**os.environ, **_SETTINGS})
        if done.returncode:
            raise CompilerUnavailableError(
                f"Installing failed with exit code {done.returncode}: see above.",
                fix="Mend what it names and run tpunb compiler install again.",
            )
        made = Environment(new, runs, PACKAGES)
        check = subprocess.run(
            made.command("import jax, jaxlib, libtpu"),
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"},
        )
        if check.returncode:
            why = (check.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise CompilerUnavailableError(
                f"JAX and libtpu are installed, and {runs} cannot import them: {why}",
                fix="Name another Python: tpunb compiler install --python PATH",
            )
        (new / _RECORD).write_text(
            json.dumps({"python": runs, "versions": dict(PACKAGES)}), encoding="utf-8"
        )
        if target.exists():
            target.rename(old)
        new.rename(target)
    return dataclasses.replace(made, folder=target)


def remove() -> Path | None:
    """Deletes the environment and what interrupted installations left.

    Returns:
        Its folder; None if there was none.

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
    with contextlib.suppress(OSError):  # it holds other things, or another installation begins
        target.with_suffix(".lock").unlink()
        target.parent.rmdir()
    return target if existed else None


@contextlib.contextmanager
def _alone() -> Iterator[tuple[Path, Path]]:
    """Keeps other installations out; raises if the folder was made by something else.

    Yields:
        A path for a new folder, and one to move the former to, so that each is found whole or
        not at all; what is there at the end is deleted.
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
                shutil.rmtree(path, ignore_errors=True)  # what was killed could not do so
                undo.callback(shutil.rmtree, path, ignore_errors=True)
            if target.exists() and not (target / _RECORD).is_file():
                raise CompilerUnavailableError(
                    f"{target} was not made by tpunb compiler install.",
                    fix="Move it away, and try again.",
                )
            yield both


def _python(wanted: str) -> tuple[str, str, bool]:
    """A Python that is new enough, what it runs as without its packages, whether it has pip."""
    names = [wanted] if wanted else [sys.executable, *_PYTHONS]
    for name in names:
        found = shutil.which(name)
        if found is None:
            continue
        try:
            asked = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True)
            version, runs, has_pip = json.loads(asked.stdout)
        except (OSError, ValueError):  # not a Python, or a shim of pyenv's without one
            continue
        if tuple(version) >= _OLDEST_PYTHON:
            return found, runs, has_pip
    raise CompilerUnavailableError(
        "The TPU's compiler needs Python 3.11 or later: "
        f"{f'{wanted} is not one' if wanted else 'there is none on the path'}.",
        fix="Install one and name it: tpunb compiler install --python PATH",
    )


def listed(versions: Mapping[str, str]) -> str:
    """Packages and their releases, in words."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
