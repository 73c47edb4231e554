"""Installed software: releases that fit, releases that do not, and releases that are fatal."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from counterparts.machines import accel
from support.patience import PATIENCE
from support.tiers import THOROUGH, thorough

from tpunb.errors import ConnectError
from tpunb.machine import chips, jax_releases, libtpu_releases
from tpunb.machine.libtpu_releases import LIBTPU, fatal_pair, prepare_tpu_library
from tpunb.machine.setup_problem import SetupProblem
from tpunb.machine.software import Software, find_software
from tpunb.machine.tested_releases import release

ROOT = Path(__file__).parents[2]
FINE = ("0.0.17", "0.0.21.1", "0.0.27", "0.0.29", "0.0.30", "0.0.31")
"""Releases that were imported with tensorflow-tpu 2.20.0 on Python 3.11."""
FATAL = ("0.0.32", "0.0.32.1", "0.0.33", "0.0.34", "0.0.35", "0.0.52")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def pair(libtpu: str, tensorflow: str = "2.20.0") -> dict[str, str]:
    return {"tensorflow-tpu": tensorflow, "libtpu": libtpu}


@pytest.mark.parametrize("local_tpu", [False, True])
@pytest.mark.parametrize("libtpu", [*FINE, *FATAL])
def test_the_doctor_reports_tested_pairs(libtpu: str, local_tpu: bool) -> None:
    software_found = list(Software("3.11.7", pair(libtpu)).problems(local_tpu=local_tpu))
    assert bool(software_found) is (libtpu in FATAL)
    for problem in software_found:
        assert problem.stops
        assert libtpu in problem.message
        assert "ends the process" in problem.message
        assert problem.command == 'pip install "libtpu>=0.0.14,<0.0.32"'


def test_a_fatal_pair_is_the_first_problem() -> None:
    software = Software("3.11.7", {**pair("0.0.52"), "tensorflow": "2.21.0", "keras": "3.5.0"})
    assert next(problem.about for problem in software.problems(local_tpu=True)) == "libtpu"


@pytest.mark.parametrize(("jax", "python"), [("0.7.2", ""), ("0.7.1", ""), ("0.6.2", "3.10")])
def test_a_jax_too_old_for_a_virtual_tpu(
    jax: str, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_releases, "ITS_PYTHON", (4, 0) if python else (3, 0))
    problems = [*Software("3.12.11", {"jax": jax}).problems(local_tpu=False)]
    stops = [problem for problem in problems if problem.stops]
    assert len(stops) == (jax != "0.7.2")
    assert all("JAX 0.7.2 or later" in problem.message for problem in stops)
    expected = "JAX 0.7.2 needs Python 4.0 or later" if python else '%pip install "jax>=0.7.2"'
    assert all(expected in problem.fix for problem in stops)


@pytest.mark.parametrize(("libtpu", "crashes"), [("0.0.21.1", True), ("0.0.23.1", False)])
@pytest.mark.parametrize("others", [{}, {"tensorflow": "2.21.0"}])
def test_a_jax_that_crashes_while_compiling(
    others: dict[str, str], libtpu: str, crashes: bool
) -> None:
    software = Software("3.12.11", {"jax": "0.7.2", "libtpu": libtpu, **others})
    software_found = [
        problem for problem in software.problems(local_tpu=False) if problem.about == "jax"
    ]
    assert [(problem.command, problem.stops) for problem in software_found] == crashes * [
        ("tpunb compiler install", False)
    ]


@pytest.mark.parametrize("tensorflow", ["2.18.0", "2.19.1", "2.99.0", "unknown version"])
def test_other_releases_are_not_judged(tensorflow: str) -> None:
    assert fatal_pair(pair("0.0.52", tensorflow)) is None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the installed versions, on a machine without TPUs."""
    versions: dict[str, str] = {}
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    monkeypatch.setattr(libtpu_releases, "version_of", versions.get)
    return versions


def test_without_a_tpu_libtpu_is_not_loaded(installed: dict[str, str]) -> None:
    installed.update(pair("0.0.52"))  # it is harmless if it is not loaded
    environment: dict[str, str] = {}
    prepare_tpu_library(environment)
    assert environment == {"TPU_LOAD_LIBRARY": "0", "TPU_SKIP_MDS_QUERY": "1"}
    prepare_tpu_library(environment)  # a second call changes nothing


def test_another_tensorflow_needs_no_variables(installed: dict[str, str]) -> None:
    installed.update({"tensorflow": "2.20.0", "libtpu": "0.0.52"})
    environment: dict[str, str] = {}
    prepare_tpu_library(environment)
    assert environment == {}


def test_the_users_variables_stay(installed: dict[str, str]) -> None:
    installed.update(pair("0.0.31"))
    environment = {"TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "0"}
    prepare_tpu_library(environment)
    assert environment == {"TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "0"}


def test_on_google_cloud_the_metadata_server_is_not_skipped(installed: dict[str, str]) -> None:
    installed.update(pair("0.0.31"))
    environment = {"GCE_METADATA_HOST": "127.0.0.1:1"}
    prepare_tpu_library(environment)
    assert environment == {"GCE_METADATA_HOST": "127.0.0.1:1", "TPU_LOAD_LIBRARY": "0"}


@pytest.mark.parametrize("libtpu", [*FINE, *FATAL])
def test_with_a_tpu_a_fatal_pair_is_refused_before_loading(
    libtpu: str, installed: dict[str, str], tmp_path: Path
) -> None:
    installed.update(pair(libtpu))
    accel(tmp_path, 1)
    environment: dict[str, str] = {}
    if libtpu in FINE:
        prepare_tpu_library(environment)
    else:
        with pytest.raises(ConnectError, match="ends the process") as raised:
            prepare_tpu_library(environment)
        assert 'pip install "libtpu>=0.0.14,<0.0.32", then restart' in raised.value.fix
    assert environment == {}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment with only packaging and the packages that a test installs."""
    import packaging.requirements  # noqa: F401  before it is hidden

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    importlib.invalidate_caches()
    yield tmp_path
    importlib.invalidate_caches()


def install(site: Path, name: str, version: str, *lines: str, size: int | None = None) -> None:
    """Write a package's metadata where Python looks, and TensorFlow's file if it has a size."""
    at = site / f"{name.replace('-', '_')}-{version}.dist-info"
    at.mkdir()
    text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
    (at / "METADATA").write_text(text)
    if size is not None:
        file = site / "tensorflow/python/_pywrap_tensorflow_internal.so"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size)
        (at / "RECORD").write_text(f"{file.relative_to(site)},sha256=x,{size}\n")
    importlib.invalidate_caches()


@pytest.mark.parametrize("last", ["tensorflow-tpu", "tensorflow", "tensorflow-cpu"])
def test_the_package_whose_files_are_on_disk(last: str, site: Path) -> None:
    sizes = {"tensorflow-tpu": 30, "tensorflow": 20, "tensorflow-cpu": 10}
    other = "tensorflow" if last == "tensorflow-tpu" else last
    for name in (other, "tensorflow-tpu") if other != last else ("tensorflow-tpu", last):
        install(site, name, "2.20.0", size=sizes[name])
    software_found = list(find_software({}).problems(local_tpu=True))
    if last == "tensorflow-tpu":
        assert software_found == []
        return
    (problem,) = software_found
    assert "Several TensorFlows" in problem.message
    assert f"pip uninstall -y {last} && " in problem.command
    assert '"tensorflow-tpu==2.20.0"' in problem.command


@pytest.mark.parametrize(("libtpu", "fits"), [("0.0.23", True), ("0.0.22", False)])
def test_jax_has_its_own_libtpu(libtpu: str, fits: bool, site: Path) -> None:
    install(site, "jax", "0.7.2", 'Requires-Dist: libtpu==0.0.23; extra == "tpu"')
    install(site, "tensorflow-tpu", "2.20.0")
    install(site, "libtpu", libtpu)
    software = find_software({})
    assert list(software.problems(local_tpu=False)) == []
    software_found = list(software.problems(local_tpu=True))
    assert bool(software_found) is not fits
    for problem in software_found:
        assert not problem.stops
        assert "jax 0.7.2 requires libtpu==0.0.23, but 0.0.22 is installed" in problem.message


@pytest.mark.parametrize(
    ("required", "libtpu", "newer"),
    [
        ("==0.0.21.*", "0.0.52", True),
        ("==0.0.21.*", "0.0.21.1", None),
        ("==0.0.21.*", "0.0.17", False),
    ],
)
def test_a_libtpu_that_is_newer_than_jax(
    required: str, libtpu: str, newer: bool | None, site: Path
) -> None:
    install(site, "jax", "0.7.1", f'Requires-Dist: libtpu{required}; extra == "tpu"')
    install(site, "libtpu", libtpu)
    problems = list(find_software({}).problems(local_tpu=True))
    about_jax = [problem for problem in problems if problem.about == "jax"]
    assert len(about_jax) == (newer is not None)
    for problem in about_jax:
        assert ("Unexpected PJRT_Plugin_Attributes_Args" in problem.message) is newer
        assert problem.command == 'pip install "jax[tpu]==0.7.1"'


def of(python: str = "3.12.1", **versions: str) -> dict[str, Any]:
    """Return a Software's arguments; in TensorFlow's names, `_` stands for `-`."""
    named = {(n.replace("_", "-") if n.startswith("tensor") else n): v for n, v in versions.items()}
    return {"python": python, "versions": named}


def problems(local_tpu: bool = False, **software: Any) -> list[SetupProblem]:
    return list(Software(**software).problems(local_tpu=local_tpu))


GOOD: list[tuple[dict[str, Any], bool]] = [
    (of(tensorflow_cpu="2.21.0", keras="3.15.1", tf_keras="2.21.0"), False),
    (of(tensorflow_tpu="2.20.0", keras="3.12.0"), True),
    (of(tensorflow="2.20.0", tensorflow_tpu="2.20.0"), True),
    (of(tensorflow="2.18.1", keras="3.10.0"), False),
    ({**of(tensorflow="2.21.0", keras="3.15.0"), "pythons": PYTHONS}, False),
    ({**of(tensorflow="2.21.0"), "imported": "2.21.0", "jax": ("tpu",)}, False),
    ({**of(tensorflow="2.21.0", keras="3.5.0", tf_keras="2.21.0"), "keras": "tf_keras"}, False),
    ({**of(tensorflow="unknown version"), "imported": "2.19.0"}, False),
]


def bad(
    software: dict[str, Any],
    message: str,
    command: str = "",
    *,
    local_tpu: bool = False,
    stops: bool = True,
) -> Any:
    return pytest.param(software, message, command, local_tpu, stops, id=message)


BAD = [
    bad(of(), "not installed", 'pip install "tpunb[cpu]"'),
    bad(of(), "not installed", 'pip install "tpunb[tpu]"', local_tpu=True),
    bad(of("3.15.0"), "no wheel for Python 3.15.0", "python3.13 -m venv .venv"),
    bad(of("3.14.0"), "not installed", 'pip install "tpunb[cpu]"'),
    bad(of("3.14.0"), "no wheel for Python 3.14.0", "python3.13 -m venv .venv", local_tpu=True),
    bad(
        of(tensorflow="2.20.0", tensorflow_tpu="2.19.0"),
        "Several TensorFlows",
        "tensorflow-tpu==2.19.0",
        local_tpu=True,
    ),
    bad(
        of(tensorflow="2.20.0", tensorflow_cpu="2.21.0"),
        "Several TensorFlows",
        "uninstall -y tensorflow-cpu",
    ),
    bad(
        of(tensorflow_cpu="2.21.0"),
        "no support for TPUs",
        'pip uninstall -y tensorflow-cpu && pip install "tpunb[tpu]"',
        local_tpu=True,
    ),
    bad(
        {**of(tensorflow="2.18.0"), "libtpu": "/lib/libtpu.so"},
        "unless it came with this machine",
        "tpunb[tpu]",
        local_tpu=True,
        stops=False,
    ),
    bad(
        {**of(tensorflow_tpu="2.20.0"), "needs": ("it wants libtpu",)},
        "it wants libtpu.",
        "tensorflow-tpu==2.20.0",
        local_tpu=True,
    ),
    bad(of(tensorflow_cpu="2.17.1"), "too old", 'pip install "tensorflow-cpu>=2.18,<2.22"'),
    bad(
        {**of("3.14.0", tensorflow="2.21.0"), "pythons": ("3.10", "3.13")},
        "Python 3.10 to 3.13",
        stops=False,
    ),
    bad(
        of(tensorflow="2.21.0", keras="3.9.2"),
        "known error 70",
        'pip install "keras>=3.10"',
        stops=False,
    ),
    bad(
        of(tensorflow="2.21.0", tf_keras="2.19.0"),
        "made for TensorFlow 2.19",
        'pip install --no-deps "tf_keras==2.21.*"',
        stops=False,
    ),
    bad(
        {**of(tensorflow="2.21.0", tf_keras="2.19.0"), "keras": "tf_keras"},
        "made for TensorFlow 2.19",
        "2.21",
    ),
    bad(
        {**of(tensorflow="2.21.0"), "keras": "tf_keras"},
        "tf_keras is not installed",
        'pip install --no-deps "tf_keras==2.21.*"',
    ),
    bad(
        {**of(tensorflow="2.21.0", keras="3.15.0"), "backend": "jax"},
        "KERAS_BACKEND=jax",
        stops=False,
    ),
    bad({**of(tensorflow="2.20.0"), "imported": "2.19.0"}, "has imported TensorFlow 2.19.0"),
    bad({**of(tensorflow_tpu="2.20.0"), "jax": ("cpu",)}, "used JAX", local_tpu=True, stops=False),
    bad({**of(tensorflow_tpu="2.20.0"), "jax": ("cpu", "tpu")}, "takes the TPU", local_tpu=True),
]


@pytest.mark.parametrize(("software", "local_tpu"), GOOD, ids=range(len(GOOD)))
def test_software_that_fits(software: dict[str, Any], local_tpu: bool) -> None:
    assert problems(local_tpu, **software) == []


@pytest.mark.parametrize(("software", "message", "command", "local_tpu", "stops"), BAD)
def test_software_that_does_not_fit(
    software: dict[str, Any], message: str, command: str, local_tpu: bool, stops: bool
) -> None:
    (software_found,) = problems(local_tpu, **software)
    assert message in software_found.message
    assert software_found.message.endswith(".")
    assert software_found.fix
    assert command in software_found.command
    assert software_found.stops is stops


def test_a_remote_tpu_needs_no_tensorflow_for_tpus() -> None:
    assert problems(local_tpu=False, **of(tensorflow_cpu="2.21.0")) == []


@pytest.mark.parametrize("version", ["", "unknown version", "nightly", "2", "3.x", "9" * 50])
def test_invalid_versions(version: str) -> None:
    for name in ("tensorflow", "keras", "tf_keras"):
        for local_tpu in (False, True):
            problems(local_tpu, **of(**{"tensorflow": "2.21.0", name: version}))


@pytest.mark.parametrize(
    ("libtpu", "message"),
    [
        (None, "tensorflow-tpu 2.20.0 requires libtpu~=0.0.14, which is not installed"),
        ("0.0.13", "tensorflow-tpu 2.20.0 requires libtpu~=0.0.14, but 0.0.13 is installed"),
        ("0.1.0", "but 0.1.0 is installed"),
        ("0.0.17", None),
    ],
)
def test_the_required_libtpu(site: Path, libtpu: str | None, message: str | None) -> None:
    install(
        site,
        "tensorflow-tpu",
        "2.20.0",
        "Requires-Dist: libtpu~=0.0.14",
        'Requires-Dist: libtpu-nightly==5; extra == "nightly"',
        "Requires-Dist: numpy>=1.26",
        "Classifier: Programming Language :: Python :: 3.9",
        "Classifier: Programming Language :: Python :: 3.13",
        "Classifier: Programming Language :: Python :: 3",
    )
    if libtpu is not None:
        install(site, "libtpu", libtpu)
    software_found = find_software({})
    assert software_found.tensorflow == "2.20.0"
    assert software_found.pythons == ("3.9", "3.13")
    assert [need for need in software_found.needs if message is None or message not in need] == []
    assert bool(software_found.needs) is (message is not None)


def test_unreadable_metadata(site: Path) -> None:
    install(site, "tensorflow-tpu", "2.20.0", "Requires-Dist: ???", "Classifier: \x00")
    (site / "libtpu-1.dist-info").mkdir()
    install(site, "keras", "<script>")
    software_found = find_software({})
    assert software_found.tensorflow == "2.20.0"
    assert software_found.needs == ()
    assert "keras" not in software_found.versions


def test_no_software(site: Path) -> None:
    software_found = find_software({})
    assert software_found.tensorflow is None
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").write_text("raise SystemExit('it is imported')")
    importlib.invalidate_caches()
    assert find_software({}).tensorflow == "unknown version"


def test_the_environment_chooses_keras() -> None:
    assert find_software({"TF_USE_LEGACY_KERAS": "1"}).keras == "tf_keras"
    assert find_software({"KERAS_BACKEND": " JAX "}).backend == "jax"


@pytest.mark.parametrize("backends", [{}, {"cpu": object(), "tpu": object()}])
def test_jax_counts_once_it_is_imported(
    backends: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._backends = backends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert find_software({}).jax == tuple(backends)


def resolved(python: str, *arguments: str, folder: Path) -> dict[str, str] | None:
    """Return the packages that pip would install, by name, or None if no index answers."""
    report = folder / "report.json"
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "--report", str(report)),
            *("--python-version", python, "--only-binary", ":all:", "--target", str(folder)),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "20"},
    )
    if run.returncode:
        unreachable = ("connection", "Could not find a version", "timed out", "resolution")
        assert any(word in run.stderr for word in unreachable), run.stderr
        return None
    names = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {item["name"].replace("_", "-").lower(): item["version"] for item in names}


def extra(name: str) -> list[str]:
    """Return the requirements of an extra in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"{name} = ["))
    requirements: list[str] = json.loads(line.partition("=")[2])
    return requirements


def colab() -> dict[str, str]:
    """Return Colab's packages, with its next TensorFlow."""
    lines = (ROOT / "tests" / "colab.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_no_package_of_colab_is_replaced() -> None:
    from packaging.requirements import Requirement

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.findall(
        r'^    "([^"]+)",', text.partition("dependencies = [")[2].partition("]")[0], re.MULTILINE
    )
    requirements = [Requirement(line) for line in (*dependencies, *extra("tpu"))]
    installed_versions = colab()
    assert {requirement.name for requirement in requirements} >= installed_versions.keys() - {
        "keras",
        "notebook",
    }
    for requirement in requirements:
        if requirement.name in installed_versions:
            assert requirement.specifier.contains(installed_versions[requirement.name]), requirement


@THOROUGH
def test_pip_keeps_colabs_packages(tmp_path: Path) -> None:
    pinned = [f"{name}=={version}" for name, version in colab().items()]
    packages = resolved("3.13", *pinned, *extra("tpu"), "--no-deps", folder=tmp_path)
    if packages is None:
        skip_loudly()
    assert packages == colab()


def skip_loudly() -> NoReturn:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("No package index answers: nothing was resolved.", stacklevel=2)
    pytest.skip("no package index answers")


@pytest.mark.parametrize("python", thorough([PYTHONS[0], PYTHONS[-1]]))
def test_the_extra_installs_a_working_pair(python: str, tmp_path: Path) -> None:
    # Their dependencies do not matter here, and take pip a long time.
    packages = resolved(python, "--no-deps", *extra("tpu"), folder=tmp_path)
    if packages is None:
        skip_loudly()
    oldest, too_new = LIBTPU[release(packages["tensorflow-tpu"])[:2]]
    assert oldest <= release(packages["libtpu"]) < too_new
    assert packages.keys() == {"keras", "libtpu", "tensorflow-tpu"}
