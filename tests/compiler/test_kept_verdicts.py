"""Verdicts on disk: the same program is compiled once, and damaged files do no harm."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.answers import COMPILED, MADE

from tpunb import cli
from tpunb._util.checked_files import packed
from tpunb._util.child_process import ChildLostError
from tpunb.compiler.ask import kept_verdicts, verdict_files
from tpunb.compiler.ask.fingerprint import Fingerprint

PROGRAM = Fingerprint("digest", ("scope/add",))
QUESTION = {"topology": "v5e:2x4", "effort": "", "releases": {"libtpu": "0.0.52"}}
HLO = 'ROOT %a = f32[] add(%x, %y), metadata={op_name="scope/add"}'
ANSWER = {**COMPILED, "text": HLO}


class Compiler:
    """A compiler that counts its calls."""

    def __init__(self, answer: Mapping[str, Any] = ANSWER) -> None:
        self.answer, self.asked = answer, 0

    def __call__(self) -> Mapping[str, Any]:
        self.asked += 1
        return self.answer

    def verdict(
        self, program: Fingerprint = PROGRAM, question: Mapping[str, Any] = QUESTION
    ) -> Mapping[str, Any]:
        return kept_verdicts.answer_for(program, question, self)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_an_answer_is_kept_unchanged(verdicts: Path) -> None:
    compiler = Compiler()
    assert compiler.verdict() == compiler.verdict() == ANSWER
    assert compiler.asked == 1
    assert kept_verdicts.size() == (1, files(verdicts)[0].stat().st_size)


@pytest.mark.parametrize(
    ("program", "question"),
    [
        (Fingerprint("other", PROGRAM.names), QUESTION),
        (PROGRAM, {**QUESTION, "topology": "v3:2x2"}),
        (PROGRAM, {**QUESTION, "effort": "EFFORT_O0"}),
        (PROGRAM, {**QUESTION, "releases": {"libtpu": "0.0.53"}}),
    ],
)
def test_another_question_is_answered_separately(
    program: Fingerprint, question: Mapping[str, Any]
) -> None:
    compiler = Compiler()
    compiler.verdict()
    compiler.verdict(program, question)
    assert compiler.asked == 2


def test_an_equal_program_gets_the_text_with_its_own_names() -> None:
    compiler = Compiler()
    compiler.verdict()
    found = compiler.verdict(Fingerprint("digest", ("layer_7/add",)))
    assert found["text"] == HLO.replace("scope/add", "layer_7/add")
    assert compiler.asked == 1
    assert compiler.verdict()["text"] == HLO


def test_a_program_that_cannot_be_renamed_is_compiled() -> None:
    compiler = Compiler({**ANSWER, "text": HLO.replace("scope/add", "made/by/the/compiler")})
    compiler.verdict()
    compiler.verdict(Fingerprint("digest", ("layer_7/add",)))
    assert compiler.asked == 2


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("UNIMPLEMENTED: While rewriting computation to not contain X{64|128}", True),
        ("INVALID_ARGUMENT: shapes differ", True),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required (16G)", True),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.", True),
        ("ABORTED: Internal error when accessing libtpu multi-process lockfile", False),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.", False),
        ("DEADLINE_EXCEEDED: it took long", False),
        ("[Errno 28] No space left on device", False),
    ],
)
def test_only_refusals_of_the_program_are_kept(message: str, kept: bool) -> None:
    compiler = Compiler({"error": message, "made": MADE})
    assert compiler.verdict() == compiler.verdict() == {"error": message, "made": MADE}
    assert compiler.asked == (1 if kept else 2)


@pytest.mark.parametrize("answer", [{"broken": "AttributeError: x"}, {"missing": "no jax"}])
def test_other_answers_are_not_kept(answer: Mapping[str, Any], verdicts: Path) -> None:
    Compiler(answer).verdict()
    assert files(verdicts) == []


def test_a_crash_or_a_time_limit_is_not_kept(verdicts: Path) -> None:
    def crash() -> Mapping[str, Any]:
        raise ChildLostError("the compiler crashed.", crashed=True)

    with pytest.raises(ChildLostError):
        kept_verdicts.answer_for(PROGRAM, QUESTION, crash)
    assert files(verdicts) == []
    assert Compiler().verdict() == ANSWER


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def of_an_older_release(data: bytes) -> bytes:
    """Return an entry of an older tpunb, before JSON, which could run code when it is read."""
    del data

    class Evil:
        def __reduce__(self) -> Any:
            return os._exit, (3,)

    pickled = zlib.compress(pickle.dumps({"key": Evil(), "names": (), "answer": {}}))
    return hashlib.sha256(pickled).digest() + pickled


def with_another_key(data: bytes) -> bytes:
    entry = {"key": "of another", "names": (), "answer": {"peak": len(data)}}
    return packed("verdict", 1, entry)


def not_an_entry(data: bytes) -> bytes:
    return packed("verdict", 1, {"peak": len(data)})


def of_a_newer_release(data: bytes) -> bytes:
    return data.replace(b"tpunb verdict 1 ", b"tpunb verdict 2 ")


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        flipped,
        of_an_older_release,
        with_another_key,
        not_an_entry,
        of_a_newer_release,
        bytes.title,
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(
    damage: Callable[[bytes], bytes], verdicts: Path
) -> None:
    compiler = Compiler()
    compiler.verdict()
    (path,) = files(verdicts)
    data = path.read_bytes()
    path.write_bytes(damage(data))
    assert compiler.verdict() == ANSWER
    assert compiler.asked == 2
    assert path.read_bytes() == data
    compiler.verdict()
    assert compiler.asked == 2


def test_an_empty_file_or_a_folder_instead_does_no_harm(verdicts: Path) -> None:
    compiler = Compiler()
    compiler.verdict()
    (path,) = files(verdicts)
    path.write_bytes(b"")
    assert compiler.verdict() == ANSWER
    path.unlink()
    path.mkdir()
    assert compiler.verdict() == ANSWER


def test_a_folder_that_cannot_be_written_keeps_nothing(
    verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts.write_text("a file")
    compiler = Compiler()
    assert compiler.verdict() == compiler.verdict() == ANSWER
    assert compiler.asked == 2
    monkeypatch.setenv(kept_verdicts.FOLDER, "off")
    assert compiler.verdict() == ANSWER
    assert kept_verdicts.size() == (0, 0)
    assert kept_verdicts.remove() is None


def test_the_least_recently_used_verdicts_are_removed(
    verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    numbered = [Fingerprint(f"program {number}", ("scope/add",)) for number in range(4)]
    for age, program in enumerate(numbered[:3]):
        compiler.verdict(program)
        for path in files(verdicts):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100 + age))
    compiler.verdict(numbered[0])  # used again, so it is the most recent
    (verdicts / ".tpunb-12.tmp").write_bytes(b"of a process that was killed")
    os.utime(verdicts / ".tpunb-12.tmp", (1, 1))
    (verdicts / "notes.txt").write_text("the user's")
    monkeypatch.setattr(kept_verdicts, "MOST_FILES", 2)
    compiler.verdict(numbered[3])
    assert kept_verdicts.size()[0] == 2
    assert sorted(path.suffix for path in files(verdicts)) == [".txt", ".verdict", ".verdict"]
    asked = compiler.asked
    compiler.verdict(numbered[3])
    compiler.verdict(numbered[0])
    assert compiler.asked == asked
    largest = max(path.stat().st_size for path in files(verdicts))
    monkeypatch.setattr(kept_verdicts, "MOST_BYTES", largest)
    compiler.verdict(numbered[1])
    assert kept_verdicts.size()[0] == 1


def test_processes_that_write_at_once_leave_complete_files(verdicts: Path) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from tpunb.compiler.ask import kept_verdicts as kept\n"
        "from tpunb.compiler.ask.fingerprint import Fingerprint\n"
        "kept.MOST_FILES = 3\n"
        "for number in range(40):\n"
        f"    answer = {{**{COMPILED!r}, 'peak': number % 5, 'text': 'x' * 50_000}}\n"
        "    program = Fingerprint(str(number % 5), ())\n"
        "    found = kept.answer_for(program, {}, lambda: answer)\n"
        "    assert found == answer, found"
    )
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert 0 < kept_verdicts.size()[0] <= 4
    assert all(verdict_files.entry_in(path.read_bytes()) for path in files(verdicts))


def test_the_command_shows_and_removes_verdicts(
    verdicts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Compiler().verdict()
    (verdicts / "notes.txt").write_text("the user's")
    cli.main(["compiler", "status"])
    size = files(verdicts)[0].stat().st_size
    assert f"stored    1 verdict, {size} B, in {verdicts}" in capsys.readouterr().out
    assert cli.main(["compiler", "remove"]) == 0
    assert capsys.readouterr().out == f"Removed {verdicts}\n"
    assert [path.name for path in files(verdicts)] == ["notes.txt"]


def test_verdicts_are_next_to_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kept_verdicts.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_verdicts.folder() == tmp_path / "tpunb" / "verdicts"
