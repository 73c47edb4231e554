"""The process that imports one user's file for `tpunb compile --serve`, and answers requests.

The user's code can print, exit, crash, fork or hang there without harm to the server's streams.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tpunb._util.child_process import ChildProcess, start_child
from tpunb._util.child_side import serve
from tpunb._util.deadline import Deadline
from tpunb.cli.compile_requests import arguments_of
from tpunb.cli.compiled_source import outcome_of
from tpunb.cli.python_source import SEPARATOR, import_file
from tpunb.compiler.ask import libtpu
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_library

_CODE = "from tpunb.cli.compile_worker import run; run({!r})"

_IMPORTING = 60.0
"""Seconds for importing the file, beside the time limit for compiling."""

_ANSWERING = 5.0
"""Seconds for the function's arguments and the answer, beside the time limit for compiling."""

Stamps = dict[str, tuple[int, int, int]]
"""The inode, the size and the time of change of files, by path; zeros for a missing file."""


def stamps_of(files: Iterable[str]) -> Stamps:
    """Return the stamps of files as they are now."""
    return {file: _stamp(file) for file in files}


def _stamp(file: str) -> tuple[int, int, int]:
    try:
        found = Path(file).stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


class Worker(ChildProcess):
    """A process with one user's file.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(lambda: start_child(_CODE.format(path), errors=None), _IMPORTING)
        self.path = path

    def report(self, request: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], Stamps]:
        """Return the report on a program, and the stamps of the files that it came from.

        Args:
            request: The checked request.
            seconds: The time limit for compiling.

        Raises:
            ChildLostError: The process ended or took longer.
        """
        self.ask(None)
        more = _ANSWERING if _is_python(self.path) else _IMPORTING
        report: tuple[dict[str, Any], Stamps] = self.ask(request, Deadline(seconds + more))
        return report


def run(path: str) -> None:
    """Answer requests about a file until there are no more."""
    # Python compares a module with its bytecode by whole seconds, and an edit may be faster.
    sys.dont_write_bytecode = True
    # `import_file` puts the working folder where it belongs: before installed packages.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path.cwd()]
    serve(lambda: _UserFile(path).answer)


class _UserFile:
    """A user's file, which is imported once.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path, self._folder = Path(path), Path.cwd()
        self._modules: dict[Path, ModuleType | Exception] = {}
        self._files: Stamps = stamps_of([str(self._path.resolve())])

    def answer(self, request: Mapping[str, Any] | None) -> tuple[dict[str, Any], Stamps] | None:
        """Return the report on a program, with the stamps of its files; None imports the file."""
        os.chdir(self._folder)  # the user's code may have changed it
        if request is None:
            self._prepare()
            return None
        return outcome_of(arguments_of(request), self._imported).report, self._used()

    def _prepare(self) -> None:
        """Import the file, so that its import does not count in the time limit for compiling."""
        if not _is_python(str(self._path)):
            return
        with contextlib.suppress(TpunbError):  # the report says it
            libtpu.start()  # it starts while the file is imported
        with contextlib.suppress(Exception):  # the report says it
            self._imported(self._path)
        importlib.import_module("tpunb.compiler.compile")

    def _used(self) -> Stamps:
        """Return the stamps of the user's files, from before each was used."""
        self._files = {**stamps_of(_user_files()), **self._files}
        return self._files

    def _imported(self, path: Path) -> ModuleType:
        if path not in self._modules:
            try:
                self._modules[path] = import_file(path)
            except Exception as error:
                self._modules[path] = error
            self._used()  # compiling takes minutes, in which a file may change
        module = self._modules[path]
        if isinstance(module, Exception):
            raise module
        return module


def _is_python(path: str) -> bool:
    return path.endswith(".py")


def _user_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_library(file):
            yield file


def source_file(source: str) -> str:
    """Return the file of a source."""
    return source.partition(SEPARATOR)[0]
