"""Programs in files load completely on a machine without a compiler, and run no code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import output_of
from support import programs as made
from support.markup import Tags, without_pictures

import tpunb
from tpunb._util.checked_files import packed, unpacked
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.compiler.program_files import ProgramFileError
from tpunb.tpu.compiled_program import Provenance, Release

PROVENANCE = Provenance(
    "2026-11-26T23:50:00Z", (Release("libtpu", "0.0.52"),), (Release("tensorflow", "2.21.0"),)
)
FITS = dataclasses.replace(made.FITS, text="HloModule jit_step", provenance=PROVENANCE)
MADE = "Loaded from resnet.tpuprogram: compiled on 2026-11-26 23:50:00 UTC by libtpu 0.0.52."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "resnet.tpuprogram"


def values_in(file: Path) -> Any:
    return unpacked("program", 1, file.read_bytes())


def of_this_process(program: TpuProgram) -> TpuProgram:
    return dataclasses.replace(program, provenance=None)


@pytest.mark.parametrize("program", [*made.ALL, FITS, made.hostile()])
def test_a_program_loads_completely(program: TpuProgram, file: Path) -> None:
    program.save(file)
    loaded = tpunb.load_program(file)
    assert isinstance(loaded, TpuProgram)
    assert of_this_process(loaded) == of_this_process(program)
    # Fields that comparisons ignore are saved, too.
    assert [dataclasses.asdict(error) for error in loaded.errors] == [
        dataclasses.asdict(error) for error in program.errors
    ]
    assert loaded.as_dict()["memory"] == program.as_dict()["memory"]


def test_a_loaded_program_behaves_like_a_fresh_program(file: Path) -> None:
    FITS.save(file)
    loaded = tpunb.load_program(str(file))
    text, fresh = str(loaded), str(FITS)
    assert text.startswith("TPU v3-8 (resnet.tpuprogram) · 8 replicas · global batch 1024\n")
    together = " ".join(text.split())
    assert f"{MADE} Traced with tensorflow 2.21.0." in together
    assert text.splitlines()[1:20] == fresh.splitlines()[1:20]
    assert "2026-11-26" not in fresh, "a fresh program shows no date"
    assert MADE in loaded._repr_html_()
    assert repr(loaded).startswith("<TpuProgram v3-8 (resnet.tpuprogram): compiles, ")
    assert loaded.ok
    loaded.raise_if_refused()
    assert loaded.as_text() == "HloModule jit_step"


def test_programs_are_compared_side_by_side(file: Path) -> None:
    TpuPrograms([FITS, made.TOO_LARGE, made.UNKNOWN]).save(file)
    loaded = tpunb.load_program(file)
    assert isinstance(loaded, TpuPrograms)
    assert [row.fits for row in loaded.rows()] == [True, False, None]
    assert loaded["v2-8"].errors == made.TOO_LARGE.errors
    with pytest.raises(CompileError, match=r"^v2-8 \(resnet.tpuprogram\): does not compile"):
        loaded.raise_if_refused()
    before_and_now = str(TpuPrograms([loaded[0], FITS]))
    assert "v3-8 (resnet.tpuprogram)  " in before_and_now
    assert "\nv3-8                      " in before_and_now


def test_a_program_that_is_saved_again_keeps_its_provenance(file: Path, tmp_path: Path) -> None:
    FITS.save(file)
    again = tmp_path / "again"
    tpunb.load_program(file).save(again)
    program = tpunb.load_program(again)
    assert isinstance(program, TpuProgram)
    assert program.provenance == dataclasses.replace(PROVENANCE, file="again")


def test_text_from_a_file_is_escaped(file: Path) -> None:
    hostile = dataclasses.replace(
        made.hostile(),
        provenance=Provenance(made.HOSTILE, (Release(made.HOSTILE, made.HOSTILE),)),
        notes=(made.HOSTILE,),
        unsized=made.HOSTILE,
    )
    hostile.save(file)
    target = file.with_name("<img src=x onerror=alert(1)>.tpuprogram")
    file.rename(target)
    page = tpunb.load_program(target)._repr_html_()
    assert "img" not in Tags(without_pictures(page)).names
    assert made.HOSTILE in "".join(Tags(page).words)


def test_loading_needs_no_tensorflow_and_no_compiler(file: Path) -> None:
    TpuPrograms([FITS, made.TOO_LARGE]).save(file)
    code = (
        "import sys\n"
        "for name in ('tensorflow', 'jax', 'jaxlib', 'libtpu', 'keras', 'numpy.core'):\n"
        "    sys.modules[name] = None\n"
        "import tpunb\n"
        f"programs = tpunb.load_program({str(file)!r})\n"
        "print(programs)\n"
        "assert 'svg' in programs._repr_html_() or 'div' in programs._repr_html_()\n"
    )
    output = output_of(code, TPUNB_COMPILER_PYTHON="/does/not/exist")
    assert "v3-8 (resnet.tpuprogram)" in output


def pickled(values: Any) -> bytes:
    class Evil:
        def __reduce__(self) -> Any:
            return os._exit, (3,)

    return pickle.dumps([values, Evil()])


def with_type(name: str, value: Any) -> Callable[[Any], bytes]:
    """Return a writer of files whose checksum is right, and whose program has a wrong value."""

    def changed(values: Any) -> bytes:
        values["programs"][0][name] = value
        return packed("program", 1, values)

    return changed


def not_compressed(values: Any) -> bytes:
    data = json.dumps(values).encode()
    return f"tpunb program 1 {hashlib.sha256(data).hexdigest()}\n".encode() + data


WRONG, NEWER, DAMAGED = "is not a saved program", "was saved by a newer tpunb", "is damaged"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickled, WRONG),
        (lambda _: b"", WRONG),
        (lambda _: b"print('hello')", WRONG),
        (lambda values: packed("verdict", 1, values), WRONG),
        (lambda values: packed("program", 2, values), NEWER),
        (lambda values: packed("program", 1, values)[:-1], DAMAGED),
        (not_compressed, DAMAGED),
        (lambda _: packed("program", 1, []), DAMAGED),
        (lambda _: packed("program", 1, {"programs": [], "several": False}), DAMAGED),
        (lambda _: packed("program", 1, {"programs": [3], "several": True}), DAMAGED),
        (lambda _: packed("program", 1, {"programs": {}}), DAMAGED),
        (with_type("tpu", 8), DAMAGED),
        (with_type("replicas", True), DAMAGED),
        (with_type("replicas", "8"), DAMAGED),
        (with_type("memory", []), DAMAGED),
        (with_type("notes", "text"), DAMAGED),
        (with_type("lines", [["a"]]), DAMAGED),
        (with_type("provenance", "yesterday"), DAMAGED),
        (with_type("time", {"low": -1.0, "high": 1.0}), DAMAGED),
    ],
)
def test_other_files_are_refused_by_their_kind(
    content: Callable[[Any], bytes], message: str, file: Path
) -> None:
    FITS.save(file)
    file.write_bytes(content(values_in(file)))
    with pytest.raises(ProgramFileError, match=message) as raised:
        tpunb.load_program(file)
    assert str(file) in raised.value.message
    assert raised.value.fix


def test_programs_with_more_or_fewer_fields_are_read(file: Path) -> None:
    FITS.save(file)
    values = values_in(file)
    program = values["programs"][0]
    program["invented_tomorrow"] = {"a": 1}
    program["memory"]["invented_too"] = []
    for name in ("provenance", "notes", "crashed"):  # fields that an older release lacks
        del program[name]
    file.write_bytes(packed("program", 1, values))
    loaded = tpunb.load_program(file)
    assert isinstance(loaded, TpuProgram)
    assert loaded.memory == FITS.memory
    assert "Its time and its compiler are not known." in " ".join(str(loaded).split())


def test_an_unreadable_or_unwritable_file_is_reported(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramFileError, match=r"nowhere/x: No such file or directory") as raised:
        FITS.save(tmp_path / "nowhere" / "x")
    assert "folder" in raised.value.fix
    with pytest.raises(ProgramFileError, match="Is a directory"):
        FITS.save(tmp_path)
    with pytest.raises(ProgramFileError, match="No such file"):
        tpunb.load_program(file)
    with pytest.raises(ProgramFileError, match="Is a directory"):
        tpunb.load_program(tmp_path)


def test_a_failure_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FITS.save(file)
    before = file.read_bytes()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProgramFileError, match="No space left"):
        made.UNTIMED.save(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_the_file_is_small_and_starts_with_its_kind(file: Path) -> None:
    dataclasses.replace(FITS, text="%add = f32[8] add(%x, %y)\n" * 10_000).save(file)
    assert file.read_bytes().startswith(b"tpunb program 1 ")
    assert file.stat().st_size < 20_000
    assert zlib.decompress(file.read_bytes().partition(b"\n")[2])
