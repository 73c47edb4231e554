"""Writing a user's file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from pathlib import Path

# The process's own streams. Opening a redirected stream by name would truncate it, or write from
# its start over the earlier output of the process.
_OWN_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")
# The errors of a folder that accepts no new file, or of a file that is mounted by itself.
_NO_ROOM_BESIDE = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.ENAMETOOLONG)
)
_FSYNC_UNKNOWN = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that a failure leaves the old file unchanged.

    The content is written to a new file in the same folder, flushed to the disk and renamed. The
    permissions are kept, and a symbolic link still leads to the file. If the path is not a regular
    file (a pipe, `/dev/stdout`), it is written to. If the folder accepts no new file but the file
    can be written, its content is replaced in place.

    Args:
        path: The file.
        content: Bytes, or text, which is written as UTF-8 with its line ends unchanged.

    Raises:
        OSError: The file cannot be written. Its `filename` is `path`.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if (number := own_stream(path)) is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # so that earlier output comes first
            with os.fdopen(os.dup(number), "wb") as file:
                file.write(data)
        elif is_stream(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        # Name the user's own path, not the temporary file's.
        raise _about(error, path) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that `write_file` can write a file, as far as can be known in advance.

    Args:
        path: The file, which need not exist.

    Raises:
        OSError: The file cannot be written. Its `filename` is `path`.
    """
    if is_stream(path):
        return
    try:
        target = Path(os.path.realpath(path))
        if _permissions(target) is None and not os.access(target.parent, os.W_OK | os.X_OK):
            target.parent.stat()  # raises if the folder does not exist
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _about(error, path) from error


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path leads to a stream, which is written to but never replaced.

    Args:
        path: A path such as `/dev/stdout`, a named pipe or a file.
    """
    if own_stream(path) is not None:
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def own_stream(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the process's own stream that a path names: 1 for `/dev/stdout`.

    Args:
        path: Any path.

    Returns:
        The file descriptor, or None for any other path.
    """
    match = _OWN_STREAM.fullmatch(os.fspath(path))
    if match is None:
        return None
    return {"stdout": 1, "stderr": 2}[match[1]] if match[1] else int(match[2])


def _about(error: OSError, path: str | os.PathLike[str]) -> OSError:
    number = errno.EIO if error.errno is None else error.errno
    return OSError(number, error.strerror or os.strerror(number), os.fspath(path))


def _permissions(path: Path) -> os.stat_result | None:
    """Return the status of an existing file that may be written, or None if it does not exist.

    Raises:
        OSError: The path is a folder, or may not be written.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.W_OK):  # renaming does not check this
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return status


def _replace(path: Path, data: bytes) -> None:
    before = _permissions(path)
    # Do not derive the name from the file's: that may already have the greatest length.
    beside = path.with_name(f".tpunb-{secrets.token_hex(8)}.tmp")
    try:
        _write_beside(beside, data, before)
        beside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        no_room = isinstance(error, OSError) and error.errno in _NO_ROOM_BESIDE
        if before is None or not no_room:
            raise
        _write_in_place(path, data, before.st_size)


def _write_beside(path: Path, data: bytes, like: os.stat_result | None) -> None:
    with path.open("xb") as file:
        if like is not None:
            # Before the file has content. Only root can give a file to another user.
            with contextlib.suppress(OSError, AttributeError):
                os.chown(path, like.st_uid, like.st_gid)
            path.chmod(stat.S_IMODE(like.st_mode))
        file.write(data)
        file.flush()
        _sync(file.fileno())


def _write_in_place(path: Path, data: bytes, size: int) -> None:
    """Replace a file's content without using another file.

    The part beyond the old length is written first. If the disk is full, it is cut off again,
    and the old content is untouched.
    """
    with path.open("r+b", buffering=0) as file:
        try:
            _write_at(file.fileno(), data[size:], size)
        except BaseException:
            file.truncate(size)
            raise
        _write_at(file.fileno(), data[:size], 0)
        file.truncate(len(data))
        _sync(file.fileno())


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    os.lseek(descriptor, offset, os.SEEK_SET)
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    _sync(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FSYNC_UNKNOWN:
            raise
