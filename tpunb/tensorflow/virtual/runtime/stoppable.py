"""Calls of traced functions that an interrupt ends.

While TensorFlow runs a function, the calling thread is in C, where interrupts do not get through.
So the main thread lets another thread make that call, and waits for it in Python. An interrupt ends
the wait, and the function is cancelled. Tracing, and everything else in Python, stays on the main
thread. The detour takes some 15 microseconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tpunb._util.interrupts import Overdue, raise_if_due
from tpunb.errors import CellError
from tpunb.tensorflow.virtual.private_names import pywrap_tfe
from tpunb.tensorflow.virtual.runtime.running_functions import running
from tpunb.tensorflow.virtual.runtime.tensorflow_state import cancelling, set_cancelling

TRACING, COMPILING, RUNNING = "tracing", "compiling and running", "running"
WAITING = "waiting for the call that was stopped to end"

_LOOK = 0.2
"""The seconds between looks: at an interrupt whose signal another thread got, at a run's time."""

_GRACE = 0.5
"""The seconds that a function has to end after it is cancelled, and again after the last resort."""

_PATIENCE = 60.0
"""The seconds that a call waits for a stopped call that could not be cancelled."""


_MOST_KNOWN = 1024
"""The most names of compiled functions that are remembered."""

_manager = pywrap_tfe.TFE_NewCancellationManager


class Job:
    """A call that is made once."""

    def __init__(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.error: BaseException | None = None
        self.result: Any = None
        self.is_done = False
        self._call, self._arguments = call, arguments
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        """Make the call; a second run does nothing."""
        if self.is_done:
            return
        try:
            self.result = self._call(*self._arguments)
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._arguments = ()
        self._done.release()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the call; return whether it has ended."""
        # An interrupt may come after the lock was acquired, so the job's own state decides.
        return self.is_done or self._done.acquire(timeout=seconds) or self.is_done


class _Worker:
    """A thread that makes calls for the main thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.put = self._jobs.put
        threading.Thread(target=self._work, name="tpunb-calls", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # otherwise its tensors would live until the next job comes


class StoppableCalls:
    """A context in which interrupts end the functions that are called.

        with calls:
            function(x)

    An interrupt cancels the function and is raised when the function has ended. Some work cannot be
    cancelled, such as a single large product of matrices. It is left behind to end by itself, and
    the next call waits for it. The context can be entered only on the main thread: on other
    threads, and within itself, it does nothing.

    Attributes:
        phase: The present activity: one of this module's constants.
        has_run: Whether a function was started since `begin`.
        was_cut: Whether an interrupt ended a function since `begin`.
        left_behind: Whether a stopped call is still running.
    """

    def __init__(self) -> None:
        self.phase = TRACING
        self.has_run = self.was_cut = False
        self._known: set[str] = set()
        self._worker: _Worker | None = None
        self._left_job: Job | None = None
        self._impl: Any = None  # TensorFlow asks a cancellation manager for this attribute
        self._call: Any = None

    @property
    def left_behind(self) -> bool:
        """True if a stopped call is still running."""
        return self._left_job is not None and not self._left_job.is_done

    def begin(self) -> None:
        """Reset the state at the start of something new."""
        self.phase = TRACING
        self.has_run = self.was_cut = False

    def __enter__(self) -> StoppableCalls:
        if threading.current_thread() is not threading.main_thread():
            return self
        if cancelling() is not None:
            return self
        if self._impl is None:
            self._impl = _manager()
        self._call = pywrap_tfe.TFE_Py_ExecuteCancelable
        pywrap_tfe.TFE_Py_ExecuteCancelable = self._execute
        set_cancelling(self)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if cancelling() is not self:
            return
        if threading.current_thread() is not threading.main_thread():
            return
        set_cancelling(None)
        pywrap_tfe.TFE_Py_ExecuteCancelable = self._call

    def start(self, call: Callable[[], Any]) -> Job:
        """Start a call that blocks in C, in the other thread; see `result_of`.

        Args:
            call: The function to call.
        """
        job = Job(call, ())
        if threading.current_thread() is threading.main_thread():
            self._start(job)
        else:
            job.run()
        return job

    def result_of(self, job: Job) -> Any:
        """Return the result of a call that was started.

        Raises:
            BaseException: The call raised this error. After an interrupt, the call goes on by
                itself, and its result can be requested again.
        """
        try:
            while not job.wait(_LOOK):
                raise_if_due()
        except KeyboardInterrupt:
            self.close()  # the next call gets another thread
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def close(self) -> None:
        """End the thread, once its call has ended."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.put(None)

    def _execute(
        self, handle: Any, device: str, name: str, inputs: Any, attrs: Any, impl: Any, count: int
    ) -> Any:
        """Replace TensorFlow's own function, which calls a traced function."""
        # Each call needs its own manager, because a failing function cancels its manager.
        manager = _manager()
        if threading.current_thread() is not threading.main_thread():
            return self._call(handle, device, name, inputs, attrs, manager, count)
        self._await_left_behind()
        self.phase = RUNNING if name in self._known else COMPILING
        job = Job(self._counted, (handle, device, name, inputs, attrs, manager, count))
        raise_if_due()
        self.has_run = True
        try:
            self._start(job)
            while not job.wait(_LOOK):
                raise_if_due()
        except KeyboardInterrupt as interrupt:
            self._stop(job, manager)
            # When its time is over, the function may nevertheless have ended well.
            if not (isinstance(interrupt, Overdue) and job.is_done and job.error is None):
                raise
        if job.error is not None:
            raise job.error
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()  # the names belong to functions that are long gone
        self._known.add(name)
        return job.result

    def _counted(self, handle: Any, device: str, name: str, *arguments: Any) -> Any:
        """Call a function, and count it as running even after the call is left behind."""
        with running(name):
            return self._call(handle, device, name, *arguments)

    def _start(self, job: Job) -> None:
        if self._worker is None:
            self._worker = _Worker()
        self._worker.put(job)

    def _stop(self, job: Job, manager: Any) -> None:
        """Cancel a call, and leave it behind if it does not end."""
        self.was_cut = True
        pywrap_tfe.TFE_CancellationManagerStartCancel(manager)
        self._left_job = job
        self._start(job)  # the interrupt may have come before the job was started
        if job.wait(_GRACE):
            return
        self.close()  # the next call gets another thread

    def _await_left_behind(self) -> None:
        """Wait for a call that could not be cancelled, because it may still write variables."""
        job = self._left_job
        if job is None:
            return
        self.phase = WAITING
        for _ in range(round(_PATIENCE / _LOOK)):
            if job.wait(_LOOK):
                self._left_job = None
                return
            raise_if_due()
        raise CellError(
            "A function that you stopped still runs, and TensorFlow cannot end it.",
            fix="Wait for it, or connect again with %tpu_connect; restart the kernel if it hangs.",
        )
