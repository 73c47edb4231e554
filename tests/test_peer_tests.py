"""The commands that run the frameworks' own tests: their sources, records, and pages."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax_tests.__main__ import JAX
from peer_tests import command, page, record
from peer_tests.peer import Peer
from peer_tests.processes import FileResults, run_file
from peer_tests.record import Exceptions, Record
from peer_tests.sources import SourceError, lay_out
from support.tiers import THOROUGH
from tensorflow_tests.__main__ import TENSORFLOW, VERSION

FILE = "tensorflow/python/distribute/values_test.py"


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "core.autocrlf=false"]
    subprocess.run(["git", *names, "-C", str(folder), *arguments], check=True, capture_output=True)


def tree(folder: Path, version: str = f"{VERSION}.0", text: str = "# as released\n") -> Path:
    """Write a source tree that looks like TensorFlow's."""
    for path, written in {
        FILE: text,
        "tensorflow/tf_version.bzl": f'TF_VERSION = "{version}"\n',
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(written.encode())
    return folder


def clone(folder: Path, **options: str) -> Path:
    tree(folder, **options)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=all")
    return folder


def bare(folder: Path) -> Path:
    git(
        clone(folder / "clone", text="# as released\r\n"),
        "clone",
        "--bare",
        ".",
        str(folder / "bare"),
    )
    return folder / "bare"


def newer_with_tag(folder: Path) -> Path:
    """Return a clone of a later release that has the tag of an earlier release."""
    git(clone(folder), "tag", f"v{VERSION}.0")
    return clone(folder, version="2.99.0", text="# as developed\n")


@pytest.mark.parametrize("make", [tree, clone, bare, newer_with_tag])
def test_files_are_laid_out(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source, folder = make(tmp_path / "source"), tmp_path / "folder"
    folder.mkdir()
    (file,) = lay_out(TENSORFLOW, str(source), folder, ["values_test"])
    assert file == folder / "values_test.py"
    assert file.read_bytes() == b"# as released\n"
    with pytest.raises(SourceError, match=r"has no tensorflow/python/distribute/vars_test.py"):
        lay_out(TENSORFLOW, str(source), folder, ["vars_test"])


def nothing(folder: Path) -> Path:
    return folder / "nothing"


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def other_clone(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a").write_text("b", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=all")
    return folder


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (nothing, "There is no folder"),
        (empty, "is no clone of TensorFlow"),
        (other_clone, "is no clone of TensorFlow"),
        (lambda folder: tree(folder, "2.20.1"), "is TensorFlow 2.20.1"),
        (lambda folder: clone(folder, version="2.22.0"), "is TensorFlow 2.22.0"),
        (lambda _: "", "No clone of TensorFlow is named"),
    ],
)
def test_a_wrong_source_is_refused(
    tmp_path: Path, make: Callable[[Path], Any], problem: str
) -> None:
    with pytest.raises(SourceError, match=problem) as raised:
        lay_out(TENSORFLOW, str(make(tmp_path / "source")), tmp_path, TENSORFLOW.tests)
    assert "git " in str(raised.value)


def test_the_command_reports_wrong_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["tensorflow_tests", str(tmp_path)])
    installed = dataclasses.replace(TENSORFLOW, installed=lambda: f"{VERSION}.0")
    assert command.main(installed, "") == 2
    assert "is no clone of TensorFlow" in capsys.readouterr().err
    newer = dataclasses.replace(TENSORFLOW, installed=lambda: "2.99.0")
    assert command.main(newer, "") == 2
    assert "installed is 2.99.0" in capsys.readouterr().err


KNOWN = Record({"a_test": 2, "b_test": 1}, [Exceptions("why", ["a_test.T.x", "b_test.T.x"])])


def results(passed: str, failed: str = "", name: str = "a_test") -> FileResults:
    tests = [{f"{name}.T.{test}" for test in names} for names in (passed, failed)]
    return FileResults(name, tests[0], dict.fromkeys(tests[1], "Error: no"))


@pytest.mark.parametrize(
    ("results_of_file", "worse", "better"),
    [
        (results("pq", "x"), [], []),
        (results("p", "qx"), ["a_test.T.q fails: Error: no"], []),
        (results("pqx"), [], ["a_test.T.x passes."]),
        (results("pq"), [], ["a_test.T.x no longer runs."]),
        (results("p", "x"), ["a_test runs 1 fewer tests than recorded."], []),
        (results("pqrs", "x"), [], ["a_test runs 2 more tests than recorded."]),
        (
            results("px", "rs"),
            ["a_test.T.r fails: Error: no", "a_test.T.s fails: Error: no"],
            ["a_test.T.x passes.", "a_test runs 1 more tests than recorded."],
        ),
        (results("p", name="c_test"), [], ["c_test runs 1 more tests than recorded."]),
    ],
)
def test_comparing_results_with_the_record(
    results_of_file: FileResults, worse: list[str], better: list[str]
) -> None:
    compared = record.compare([results_of_file], KNOWN)
    assert (compared.worse, compared.better) == (worse, better)


def test_the_number_of_tests_is_not_compared_for_a_part_of_a_file() -> None:
    compared = record.compare([results("p")], KNOWN, whole=False)
    assert not compared.worse
    assert not compared.better


def test_tests_that_got_better_leave_the_record(tmp_path: Path) -> None:
    new = KNOWN.without([results("pqx")])
    assert new == Record({"a_test": 3, "b_test": 1}, [Exceptions("why", ["b_test.T.x"])])
    record.save(new, tmp_path / "record.json")
    assert record.load(tmp_path / "record.json") == new
    assert KNOWN.without([results("p", "qx")]).exceptions == KNOWN.exceptions


@pytest.mark.parametrize(
    ("results_of_file", "code"), [(results("pq", "x"), 0), (results("p", "qx"), 1)]
)
def test_the_command_fails_if_a_test_got_worse(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    results_of_file: FileResults,
    code: int,
) -> None:
    monkeypatch.setattr(command, "lay_out", lambda *_: [])
    monkeypatch.setattr(command, "run_files", lambda *_: iter([results_of_file]))
    monkeypatch.setattr(record, "load", lambda _: KNOWN)
    monkeypatch.setattr(sys, "argv", ["tensorflow_tests", "source"])
    assert command.main(dataclasses.replace(TENSORFLOW, installed=lambda: VERSION), "") == code
    shown = capsys.readouterr().out
    assert f"{len(results_of_file.passed)} of 3 tests pass." in shown
    assert ("worse: a_test.T.q" in shown) == bool(code)


@pytest.mark.parametrize("peer", [TENSORFLOW, JAX], ids=lambda peer: peer.name)
def test_the_record_covers_the_files_and_gives_reasons(peer: Peer) -> None:
    known = record.load(peer.record)
    assert set(known.passed) == set(peer.tests)
    tests = [test for group in known.exceptions for test in group.tests]
    assert len(set(tests)) == len(tests)
    assert {test.partition(".")[0] for test in tests} <= set(peer.tests)
    assert all(group.reason.endswith(".") for group in known.exceptions)


@pytest.mark.parametrize("peer", [TENSORFLOW, JAX], ids=lambda peer: peer.name)
def test_the_page_shows_the_record(tmp_path: Path, peer: Peer) -> None:
    """The option `--write` writes both."""
    assert page.shown(peer.page) == page.written(record.load(peer.record))
    copy = tmp_path / "page.md"
    copy.write_text("Before\n<!-- record -->\nold\n<!-- /record -->\nAfter\n", encoding="utf-8")
    page.put(KNOWN, copy)
    assert page.shown(copy) == page.written(KNOWN)
    text = copy.read_text(encoding="utf-8")
    assert text.startswith("Before\n")
    assert text.endswith("\nAfter\n")
    assert "3 of 5 pass." in text
    assert "old" not in text


PROGRAM = """
import os
from absl.testing import parameterized
from tensorflow.python.distribute import combinations, strategy_combinations
from tensorflow.python.platform import test

class VirtualTest(test.TestCase, parameterized.TestCase):
    @combinations.generate(combinations.combine(
        strategy=[
            strategy_combinations.tpu_strategy,
            strategy_combinations.tpu_strategy_one_core,
            strategy_combinations.mirrored_strategy_with_cpu_1_and_2,
        ],
        mode=["graph", "eager"]))
    def testReplicas(self, strategy):
        cores = 1 if "OneCore" in self.id() else 2  # a combination's name ends with its strategy
        self.assertEqual(strategy.num_replicas_in_sync, cores)
        self.assertIn("virtual", repr(strategy))

    def testFails(self):
        for part in range(2):
            with self.subTest(part=part):
                self.assertEqual(part, 0)

    def testKills(self):
        os._exit(7)

    def testSkips(self):
        self.skipTest("Not on a TPU.")

    def testSucceeds(self):
        pass
"""


@pytest.mark.tensorflow
@THOROUGH
def test_a_file_runs_on_virtual_tpus(tmp_path: Path) -> None:
    """A test that ends its process counts as failed, and the tests after it run in another process."""
    file = tmp_path / "program_test.py"
    file.write_text(PROGRAM, encoding="utf-8")
    file_results = run_file(TENSORFLOW, file, tmp_path, "", patience=600.0)
    passed = {name.rpartition("testReplicas_test_")[2] for name in file_results.passed}
    assert passed >= {"mode_graph_strategy_TPU", "mode_eager_strategy_TPUOneCore"}
    assert len(file_results.passed) == 4 + 1
    names = {name.rpartition(".")[2]: text for name, text in file_results.failed.items()}
    assert set(names) == {"testFails", "testKills"}
    assert "1 != 0" in names["testFails"]
    assert "ends the process with 7" in names["testKills"]
    assert list(file_results.skipped.values()) == ["Not on a TPU."]
