"""Recording with TensorFlow's profiler, and reading of the recorded profile."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from tpunb.errors import TpunbError
from tpunb.training.profile import Profile
from tpunb.training.profile_reader import read_profile

_RECORDINGS = "plugins/profile/*/*.xplane.pb"


class ProfileError(TpunbError, RuntimeError):
    """The error of a profile that cannot be recorded."""


@contextlib.contextmanager
def profile(keep: str | Path | None = None) -> Iterator[Profile]:
    """Record where the time goes, with TensorFlow's profiler: input wait, host, device.

    Example:
        >>> import tensorflow as tf
        >>> with tpunb.profile() as profile:
        ...     total = sum(tf.reduce_sum(x) for x in tf.data.Dataset.range(10).batch(2))
        >>> 0 <= profile.input_wait <= 1
        True

        In the block, call `model.fit(dataset)` or make steps of your own.

    An exception in the block ends the recording and is raised; the profile stays empty. On a
    virtual TPU the device is the processors. On a TPU its operations are read from its planes.

    Args:
        keep: A folder for the recorded files, which TensorBoard's and xprof's profiler show. By
            default the files are removed after they are read.

    Yields:
        The profile, which is filled when the block has ended.

    Raises:
        ProfileError: A profiler is running already, or code in the block has stopped the profiler.
    """
    recorded = Profile()
    with contextlib.ExitStack() as cleaning:
        if keep is None:
            # An interrupted recording may still be writing files. This must not stop the clean-up.
            temporary = tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True)
            folder = Path(cleaning.enter_context(temporary))
        else:
            folder = Path(keep).expanduser()
        before = set(folder.glob(_RECORDINGS))
        try:
            tf.profiler.experimental.start(str(folder))
        except tf.errors.AlreadyExistsError:
            raise ProfileError(
                "A profiler is already running, and TensorFlow has only one.",
                fix="Let it end, or run tf.profiler.experimental.stop().",
            ) from None
        began = time.perf_counter()
        try:
            yield recorded
        except BaseException:
            with contextlib.suppress(tf.errors.UnavailableError):  # the block stopped the profiler
                tf.profiler.experimental.stop(save=keep is not None)
            raise
        seconds = time.perf_counter() - began
        try:
            tf.profiler.experimental.stop()
        except tf.errors.UnavailableError:
            raise ProfileError(
                "The profiler was stopped before the end.",
                fix="Remove what stops it, such as TensorBoard(profile_batch=...): it records too.",
            ) from None
        from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

        space = XSpace()  # the planes of all hosts that wrote a file
        for file in sorted(set(folder.glob(_RECORDINGS)) - before):
            space.MergeFromString(file.read_bytes())
        vars(recorded).update(vars(read_profile(space, seconds)))
