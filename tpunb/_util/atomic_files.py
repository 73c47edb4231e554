"""Writing a user's file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from pathlib import Path

# A process's own streams. Opened by name, a redirected one would be truncated, or written
# from its start, over what the process has printed before.
_OWN_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")
# What a directory, or a file that is mounted by itself, answers that takes no other file.
_NO_ROOM_BESIDE = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.ENAMETOOLONG)
)
_FSYNC_UNKNOWN = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file so that a failure leaves the old one as it was.

    The content is written beside the file, flushed to the disk and renamed. Permissions
    are kept, a symbolic link keeps leading to the file, and what is not a regular file (a
    pipe, `/dev/stdout`) is written to. Where the folder takes no file, but the file can be
    written, its content is replaced in place.

    Args:
        path: The file.
        content: Bytes, or text, which is written as UTF-8 with its own line ends.

    Raises:
        OSError: It cannot be written; `filename` is `path`.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if (number := own_stream(path)) is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # what was printed before comes before
            with os.fdopen(os.dup(number), "wb") as file:
                file.write(data)
        elif is_stream(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        # The name of the file beside it, or none, says nothing to whoever gave this one.
        raise _about(error, path) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks that `write_file` can write a file, as far as this can be known in advance.

    Args:
        path: The file; it need not exist.

    Raises:
        OSError: It cannot be written; `filename` is `path`.
    """
    if is_stream(path):
        return
    try:
        target = Path(os.path.realpath(path))
        if _permissions(target) is None and not os.access(target.parent, os.W_OK | os.X_OK):
            target.parent.stat()  # says so if it is not there
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _about(error, path) from error


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path leads to a stream, which is written to and never replaced.

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
    """The number of the process's own stream that a path names: 1 for `/dev/stdout`.

    Args:
        path: Any path.

    Returns:
        The file descriptor; None for other paths.
    """
    found = _OWN_STREAM.fullmatch(os.fspath(path))
    if found is None:
        return None
    return {"stdout": 1, "stderr": 2}[found[1]] if found[1] else int(found[2])


def _about(error: OSError, path: str | os.PathLike[str]) -> OSError:
    number = errno.EIO if error.errno is None else error.errno
    return OSError(number, error.strerror or os.strerror(number), os.fspath(path))


def _permissions(path: Path) -> os.stat_result | None:
    """The status of an existing file that may be written; None if it does not exist.

    Raises:
        OSError: It is a folder, or must not be written.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return found


def _replace(path: Path, data: bytes) -> None:
    before = _permissions(path)
    # Not from the file's name: that may already be as long as a name can be.
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
            # Before there is anything to read. Only root can give a file to somebody else.
            with contextlib.suppress(OSError, AttributeError):
                os.chown(path, like.st_uid, like.st_gid)
            path.chmod(stat.S_IMODE(like.st_mode))
        file.write(data)
        file.flush()
        _sync(file.fileno())


def _write_in_place(path: Path, data: bytes, size: int) -> None:
    """Replaces a file's content without another file.

    What is longer than before comes first: if the disk is full, it is cut off again, and
    the old content has not been touched.
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
