"""A framework whose own tests run on the virtual TPU."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A framework, its recorded release and its tests.

    Attributes:
        name: The framework's name.
        package: The package of `tests` with its worker and its record.
        version: The recorded release. Tests import private modules, so they fit no other release.
        installed: Returns the installed release.
        repository: The address of its repository.
        tag: The release's tag.
        revisions: Further names of the release in a clone.
        version_file: The file of the repository that has the release.
        version_line: A pattern for the line with the release.
        tests: The names of the test files, without their ending.
        path_of: Returns a test file's path in the repository.
        longest: The files that take longest.
        environment: The environment variables of the processes.
    """

    name: str
    package: str
    version: str
    installed: Callable[[], str | None]
    repository: str
    tag: str
    revisions: Sequence[str]
    version_file: str
    version_line: str
    tests: Sequence[str]
    path_of: Callable[[str], str]
    longest: Sequence[str]
    environment: Mapping[str, str]

    @property
    def command(self) -> str:
        """The target of make."""
        return self.package.replace("_", "-")

    @property
    def clone(self) -> str:
        """The command that makes a clone."""
        return f"git clone --depth 1 --branch {self.tag} {self.repository}"

    @property
    def record(self) -> Path:
        """The file with the tests that are known to pass."""
        file = importlib.import_module(self.package).__file__
        assert file is not None
        return Path(file).with_name("record.json")

    @property
    def page(self) -> Path:
        """The documentation page that shows the record."""
        return ROOT / "docs" / "maintainers" / f"{self.command}.md"
