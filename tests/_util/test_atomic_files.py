"""Files are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE

from tpunb import History
from tpunb._util.atomic_files import check_writable, is_stream, write_file

OLD = "old " * 100
ROOM = 1000


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let the kernel refuse to write more than ROOM bytes, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text(OLD)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def forbid_temporary_files(monkeypatch: pytest.MonkeyPatch, number: int = errno.EBUSY) -> None:
    def replace(self: Path, target: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", replace)


def test_a_file_is_replaced(file: Path) -> None:
    file.chmod(0o640)
    write_file(file, "new\r\n√\n")
    assert file.read_bytes() == "new\r\n√\n".encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert names(file.parent) == ["file"]


def test_a_new_files_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("in_place", [False, True])
def test_a_full_disk_leaves_the_old_file(
    file: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_place:
        forbid_temporary_files(monkeypatch)
        monkeypatch.setattr("tpunb._util.atomic_files._write_beside", lambda *_: None)
    with full_disk(), pytest.raises(OSError, match="File too large") as raised:
        write_file(file, "new" * ROOM)
    assert raised.value.filename == str(file)
    assert file.read_text() == OLD
    assert names(file.parent) == ["file"]


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_file(tmp_path / "new", "new" * ROOM)
    assert names(tmp_path) == []


def test_an_interrupt_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(file, "new")
    assert file.read_text() == OLD
    assert names(file.parent) == ["file"]


@pytest.mark.parametrize("new", ["", "short", "new" * 500])
def test_a_mounted_file_is_replaced_in_place(
    file: Path, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_temporary_files(monkeypatch)
    number = file.stat().st_ino
    write_file(file, new)
    assert file.read_text() == new
    assert file.stat().st_ino == number
    assert names(file.parent) == ["file"]


def test_a_new_file_needs_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_temporary_files(monkeypatch, errno.EACCES)
    with pytest.raises(PermissionError):
        write_file(tmp_path / "new", "x")
    assert names(tmp_path) == []


def test_a_link_keeps_its_target(file: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(Path("..", "file"))
    write_file(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to("made")
    write_file(nowhere, "new")
    assert (tmp_path / "made").read_text() == "new"
    assert names(tmp_path / "folder") == ["link"]


def test_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_file(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("write", [check_writable, lambda path: write_file(path, "new")])
def test_unwritable_paths(write: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError):
        write(file.parent)
    with pytest.raises(FileNotFoundError):
        write(file.parent / "none" / "file")
    with pytest.raises(NotADirectoryError):
        write(file / "file")
    loop = file.parent / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write(loop)
    # As for a user other than root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError) as raised:
        write(file)
    assert raised.value.filename == str(file)
    assert file.read_text() == OLD


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(pipe)
    write_file(pipe, "new")
    reader.join()
    assert read == [b"new"]
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_not_replaced(name: str, tmp_path: Path) -> None:
    code = f"""
from tpunb._util.atomic_files import write_file
print("before")
write_file({name!r}, "content\\n")
print("after")"""
    target = tmp_path / "printed"
    with target.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=PATIENCE)
    assert target.read_text() == "before\ncontent\nafter\n"
    assert is_stream(name)


def test_a_device_that_is_full() -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        write_file("/dev/full", "new")
    assert raised.value.filename == "/dev/full"


def test_a_table_of_a_history(file: Path) -> None:
    history = History()
    history.extend("loss", range(300), [0.123456789] * 300)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        history.to_csv(file)
    assert file.read_text() == OLD
    history.to_csv(file)
    assert file.read_text() == history.to_csv()
