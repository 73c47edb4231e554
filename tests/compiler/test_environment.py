"""`tpunb compiler` installs a separate environment, here from tiny packages of the same names."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.tiers import THOROUGH

from tpunb import cli
from tpunb.compiler.ask import environment, libtpu
from tpunb.compiler.ask.environment import older_than, packages_for
from tpunb.compiler.program import CompilerUnavailableError

PACKAGES = packages_for(sys.version_info)

pytestmark = pytest.mark.skipif(
    environment.why_not_here() is not None or sys.version_info < (3, 11),
    reason="libtpu has no wheel for this machine or this Python",
)
Command = Callable[..., str]


def write_wheel(wheels: Path, name: str, code: str = "place = __file__") -> Path:
    """Write a wheel with one module."""
    version = PACKAGES[name]
    about = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    path = wheels / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", code)
        wheel.writestr(f"{about}/METADATA", described)
        wheel.writestr(f"{about}/WHEEL", tags)
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of wheels that replaces the index; each has a module that reports its place."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in PACKAGES:
        write_wheel(wheels, name)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def folder(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the future environment's folder, in a cache with another program's files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    monkeypatch.setattr(libtpu, "_own", dict)
    (tmp_path / "cache" / "other").mkdir(parents=True)
    return tmp_path / "cache" / "tpunb" / "compiler"


@pytest.fixture
def tpunb_compiler(folder: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command and returns its output."""

    def run(*arguments: str, code: int = 0) -> str:
        assert cli.main(["compiler", *arguments]) == code
        captured = capfd.readouterr()
        return captured.out + captured.err

    return run


def test_the_environment_is_installed_shown_used_and_removed(
    tpunb_compiler: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Try: tpunb compiler install" in tpunb_compiler("status", code=1)
    output = tpunb_compiler("install")
    assert output.index("takes 1 GiB of disk") < output.index("nstalled")
    # The installer's own message.
    assert "Successfully installed" in output or "Installed 3 packages" in output
    assert f"Installed the TPU's compiler in {folder}" in output
    output = tpunb_compiler("status")
    assert f"folder    {folder}" in output
    assert f"releases  {environment.listed(PACKAGES)}" in output
    assert re.search(r"size +[\d.]+ [KM]iB", output)
    assert f"used      {folder}" in output
    assert libtpu.why_unavailable() is None
    _assert_packages_are_isolated(folder)
    with monkeypatch.context() as patched:
        _assert_the_compilers_process_uses_it(tpunb_compiler, patched)
    tpunb_compiler("install", "--python", sys.executable)  # reinstalls in the same place
    assert sorted(path.name for path in folder.parent.iterdir()) == ["compiler", "compiler.lock"]
    assert tpunb_compiler("remove") == f"Removed {folder}\n"
    assert [path.name for path in folder.parent.parent.iterdir()] == ["other"]
    assert tpunb_compiler("remove") == "Nothing is installed.\n"
    assert libtpu.why_unavailable() is not None


def _assert_packages_are_isolated(folder: Path) -> None:
    installed = environment.find()
    assert installed is not None
    code = "import jax; print(jax.place)\ntry: import pytest\nexcept ImportError: print('alone')"
    command = installed.command(code)
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"{folder / 'jax' / '__init__.py'}\nalone\n"


def _assert_the_compilers_process_uses_it(
    tpunb_compiler: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        libtpu, "start_child", lambda code, command, *_, **__: started.append(command(code))
    )
    libtpu._start()
    installed = environment.find()
    assert installed is not None
    assert started[0][:-1] == installed.command("")[:-1]
    monkeypatch.setenv(libtpu.PYTHON, sys.executable)
    libtpu._start()
    assert started[1][0] == sys.executable
    assert "which TPUNB_COMPILER_PYTHON names" in tpunb_compiler("status")


@THOROUGH
def test_a_failure_keeps_the_installed_environment(
    tpunb_compiler: Command, folder: Path, packages: Path
) -> None:
    (packages / "libtpu-0.0.52-py3-none-any.whl").unlink()
    assert "Installing failed with exit code" in tpunb_compiler("install", code=2)
    assert environment.find() is None
    assert not folder.with_suffix(".partial").exists()
    write_wheel(packages, "libtpu")
    tpunb_compiler("install")
    write_wheel(packages, "libtpu", "raise ImportError('no such symbol')")
    assert "cannot import them: ImportError: no such symbol" in tpunb_compiler("install", code=2)
    assert libtpu.why_unavailable() is None  # the earlier environment works


@THOROUGH
def test_an_interrupted_installation_is_not_found(
    tpunb_compiler: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def interrupted(command: list[str], **options: Any) -> Any:
        if "--target" not in command:
            return run(command, **options)
        Path(command[command.index("--target") + 1], "jax").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", interrupted)
        tpunb_compiler("install", code=130)
    assert environment.find() is None
    assert not folder.with_suffix(".partial").exists()
    # A killed installation leaves its files behind.
    folder.with_suffix(".partial").mkdir()
    (folder.with_suffix(".partial") / "half").touch()
    assert environment.find() is None
    tpunb_compiler("install")
    assert not (folder / "half").exists()
    assert libtpu.why_unavailable() is None


def test_two_installations_do_not_run_at_once(tpunb_compiler: Command, folder: Path) -> None:
    folder.parent.mkdir()
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "Another process is installing" in tpunb_compiler("install", code=2)


def test_another_folder_is_left_alone(tpunb_compiler: Command, folder: Path) -> None:
    (folder / "photos").mkdir(parents=True)
    assert "was not made by tpunb" in tpunb_compiler("remove", code=2)
    assert "was not made by tpunb" in tpunb_compiler("install", code=2)
    assert (folder / "photos").is_dir()


def test_another_python_is_named(tpunb_compiler: Command) -> None:
    assert "Python 3.11 or later, but cat is not such a Python" in tpunb_compiler(
        "install", "--python", "cat", code=2
    )


@pytest.mark.parametrize(
    ("record", "own", "message"),
    [
        ({"python": "/gone", "versions": dict(PACKAGES)}, {}, "its Python, /gone, no longer"),
        ({"python": "/bin/sh", "versions": {"jax": "0.9.0"}}, {}, "it has jax 0.9.0, but this"),
        ({"python": "/gone", "versions": dict(PACKAGES)}, PACKAGES, ""),
        (None, PACKAGES, ""),
        (None, {}, "is not installed."),
        (
            None,
            {"jax": "0.7.2", "jaxlib": "0.7.2", "libtpu": "0.0.21.1"},
            "this Python has jax 0.7.2, ",
        ),
        ("{", {}, "is not installed."),
    ],
)
def test_the_environment_that_would_compile_is_checked(
    record: Mapping[str, Any] | str | None,
    own: Mapping[str, str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This Python's own JAX and libtpu may not fit each other, and do not count."""

    def version(name: str) -> str:
        if name not in own:
            raise metadata.PackageNotFoundError(name)
        return own[name]

    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent.parent))
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    monkeypatch.setattr(metadata, "version", version)
    if record is not None:
        folder.mkdir(parents=True)
        text = record if isinstance(record, str) else json.dumps(record)
        (folder / "tpunb-compiler.json").write_text(text)
    error = libtpu.why_unavailable()
    assert (error is None) is not bool(message)
    if error is not None:
        assert message in error.message
        assert "tpunb compiler install" in error.fix


def test_a_variable_with_a_missing_file_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(libtpu.PYTHON, "/nowhere/python")
    with pytest.raises(CompilerUnavailableError, match="names /nowhere/python, which is not"):
        libtpu.require()


ROOT = Path(__file__).parents[2]


def _required(text: str, python: str) -> dict[str, SpecifierSet]:
    """Return what lines of requirements ask for on Linux with a release of Python."""
    machine = {"python_version": python, "platform_system": "Linux", "platform_machine": "x86_64"}
    lines = [line.strip().removeprefix('"').removesuffix('",') for line in text.splitlines()]
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    return {
        each.name: each.specifier
        for each in requirements
        if each.marker is None or each.marker.evaluate(machine)
    }


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_its_releases_match_the_extra(version: tuple[int, int]) -> None:
    """A newer JAX fulfils the extra, so that pip leaves it as it is."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = project.partition("\ncompiler = [\n")[2].partition("\n]")[0]
    required = _required(extra, ".".join(map(str, version)))
    packages = packages_for(version)
    assert required.keys() == packages.keys()
    assert all(required[name].contains(release) for name, release in packages.items())
    assert all(required[name].contains("99.0") for name in ("jax", "jaxlib"))
    assert not any(required[name].contains("0.10.1") for name in ("jax", "jaxlib"))


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_the_tests_pin_its_releases(version: tuple[int, int]) -> None:
    pins = (ROOT / "tests" / "compiler.txt").read_text(encoding="utf-8")
    required = _required(pins, ".".join(map(str, version)))
    packages = packages_for(version)
    assert {name: str(required[name]) for name in packages} == {
        name: f"=={release}" for name, release in packages.items()
    }


def test_the_extra_is_refused_on_python_3_10() -> None:
    """It would install nothing, without a word, if a marker left libtpu out there."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = project.partition("\ncompiler = [\n")[2].partition("\n]")[0]
    assert "libtpu" in _required(extra, "3.10")


def test_a_newer_jax_of_the_users_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**PACKAGES, "jax": "99.0", "jaxlib": "99.0"}
    monkeypatch.setattr(libtpu, "_own", lambda: own)
    error = libtpu.why_unavailable()
    assert error is not None
    assert "this Python has jax 99.0, jaxlib 99.0" in error.message
    assert "tpunb compiler install" in error.fix


def test_a_compiler_that_is_older_than_jax_is_named() -> None:
    assert older_than("0.10.2", "0.10.2") == older_than("0.12.0.1", "0.7.2") == ""
    said = older_than("0.10.2", "0.12.0.1")
    assert "has JAX 0.10.2, which is older" in said
    assert "tpunb compiler install --python python3.12" in said
