"""The end of the process, which a worker that freezes just then must not hold up."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from tpunb.connection.cluster.probe import responds

__all__ = ["ExitGuard"]

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_CUTS = 0.1


class ExitGuard:
    """Ends TensorFlow's waiting at the end of the process for workers that do not respond.

    TensorFlow waits there for all that its workers still do, without a time limit. While it
    waits they are asked, and the connections closed once one gives no answer. This needs a
    thread, which has to be there before: none can be started then.

    Args:
        addresses: The workers.
        peers: Their IP addresses and ports.
    """

    def __init__(self, addresses: Sequence[str], peers: Collection[tuple[str, int]]) -> None:
        self._addresses, self._peers = tuple(addresses), peers
        self._wanted = threading.Event()
        self._is_over = False
        threading.Thread(target=self._run, name="tpunb-exit", daemon=True).start()

    def watch(self) -> None:
        """The process ends."""
        self._wanted.set()

    def close(self) -> None:
        """There is nothing to wait for any more."""
        self._is_over = True
        self._wanted.set()

    def _run(self) -> None:
        from tpunb.connection.cluster.time_limit import cut

        self._wanted.wait()
        while not self._is_over and all(map(responds, self._addresses)):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        while not self._is_over:  # TensorFlow connects again to what it cannot reach
            cut(self._peers)
            time.sleep(_SECONDS_BETWEEN_CUTS)
