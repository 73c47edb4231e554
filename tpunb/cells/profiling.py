"""Records with TensorFlow's profiler, and reads what it has recorded."""

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
    """A profile that cannot be recorded."""


@contextlib.contextmanager
def profile(keep: str | Path | None = None) -> Iterator[Profile]:
    """Records where the time goes, with TensorFlow's profiler: input wait, host, device.

    Example::

        with tpunb.profile() as profile:
            model.fit(dataset)
        print(profile.input_wait, profile)

    An exception in the block ends the recording and is raised; the profile stays empty. On a
    virtual TPU the device is the processors; on a TPU its operations are read from its planes.

    Args:
        keep: A folder for what is recorded, which TensorBoard's and xprof's profiler show; by
            default it is removed once it is read.

    Yields:
        The profile, which is filled when the block has ended.

    Raises:
        ProfileError: A profiler is running already, or something in the block has stopped it.
    """
    found = Profile()
    with contextlib.ExitStack() as cleaning:
        if keep is None:
            # What an interrupted recording is still writing must not stop the rest.
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
            yield found
        except BaseException:
            with contextlib.suppress(tf.errors.UnavailableError):  # stopped in the block
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
        vars(found).update(vars(read_profile(space, seconds)))
