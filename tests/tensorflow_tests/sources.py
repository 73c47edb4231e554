"""TensorFlow's test files, copied from a clone of its repository to a folder.

The files are neither part of this project nor of TensorFlow's wheel.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

VERSION = "2.21"
"""The recorded release. Tests import private modules, so they fit no other release."""

TESTS = (
    "strategy_common_test",
    "strategy_gather_test",
    "custom_training_loop_gradient_test",
    "custom_training_loop_input_test",
    "values_test",
    "values_v2_test",
    "vars_test",
    "distributed_variable_test",
    "mirrored_values_test",
    "input_lib_test",
    "input_lib_type_spec_test",
    "metrics_v1_test",
    "checkpointing_test",
    "moving_averages_test",
    "random_generator_test",
    "tf_function_test",
    "test_util_test",
    "strategy_combinations_test",
    "saved_model_test",
)
"""Test files with a TPU strategy as a parameter. They need no other file of the clone."""

_FOLDER = "tensorflow/python/distribute"
_ELSEWHERE = {"saved_model_test": "integration_test/"}
_VERSION_FILE = "tensorflow/tf_version.bzl"
_REVISIONS = ("HEAD", f"v{VERSION}.0", f"origin/r{VERSION}")
_CLONE = f"git clone --depth 1 --branch v{VERSION}.0 https://github.com/tensorflow/tensorflow"


class SourceError(Exception):
    """The test files cannot be read from the given source."""


def lay_out(source: str, folder: Path, tests: Iterable[str] = TESTS) -> list[Path]:
    """Write test files to a folder.

    Args:
        source: A clone of TensorFlow, its git directory, or an unpacked archive.
        folder: The folder for the files.
        tests: The names of the files, without their ending.

    Returns:
        The written files, in the order of `tests`.

    Raises:
        SourceError: The source is not TensorFlow, or it is another release.
    """
    read = _reader(source)
    files = []
    for name in tests:
        path = f"{_FOLDER}/{_ELSEWHERE.get(name, '')}{name}.py"
        text = read(path)
        if text is None:
            raise SourceError(f"{source} has no {path}.\nA complete clone: {_CLONE}")
        files.append(folder / f"{name}.py")
        files[-1].write_text(text, encoding="utf-8")
    return files


def _reader(source: str) -> Callable[[str], str | None]:
    """A function that reads a file of the recorded release, or returns None if it is missing."""
    if not source:
        raise SourceError(
            "No clone of TensorFlow is named.\n"
            f"Get one: {_CLONE}\nThen: make tensorflow-tests TENSORFLOW=tensorflow"
        )
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise SourceError(f"There is no folder {source}.\nGet a clone: {_CLONE}")
    readers: list[Callable[[str], str | None]] = [lambda path: _read(folder / path)]
    readers += [_of_revision(folder, revision) for revision in _REVISIONS]
    versions = []
    for read in readers:
        version = re.search(r'^TF_VERSION = "([^"]+)"', read(_VERSION_FILE) or "", re.MULTILINE)
        if version is None:
            continue
        if version[1].startswith(f"{VERSION}."):
            return read
        versions.append(version[1])
    if versions:
        raise SourceError(
            f"{source} is TensorFlow {versions[0]}, and the recorded tests are those of {VERSION}.\n"
            f"In a clone: git fetch --depth 1 origin tag v{VERSION}.0"
        )
    raise SourceError(f"{source} is no clone of TensorFlow.\nGet one: {_CLONE}")


def _of_revision(folder: Path, revision: str) -> Callable[[str], str | None]:
    """A function that reads the files of a revision of a clone, also of a bare clone."""

    def read(path: str) -> str | None:
        command = ["git", "-C", str(folder), "show", f"{revision}:{path}"]
        try:
            shown = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return None
        return shown.stdout.decode().replace("\r\n", "\n") if shown.returncode == 0 else None

    return read


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None
