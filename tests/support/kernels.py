"""Kernels that a test starts, and their clients."""

from __future__ import annotations

from typing import Any

from jupyter_client.manager import KernelManager

from support.patience import PATIENCE, wait_until


class Client:
    """A client of a kernel, like a front end that shows its output."""

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self._client = manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)

    def run(self, code: str, *, interrupt_at: str | None = None) -> tuple[dict[str, Any], str]:
        """Run a cell, and interrupt the kernel when a text is shown."""
        shown: list[str] = []

        def record(message: dict[str, Any]) -> None:
            content = message["content"]
            text = content.get("data", {}).get("text/plain", "") or content.get("text", "")
            if interrupt_at and interrupt_at in text and not any(interrupt_at in t for t in shown):
                self._manager.interrupt_kernel()
            shown.append(text)

        # Otherwise the kernel may abort a request that follows an error.
        reply = self._client.execute_interactive(
            code, output_hook=record, timeout=PATIENCE, stop_on_error=False
        )
        return reply["content"], "\n".join(shown)

    def start(self, code: str) -> None:
        """Send a cell without waiting for it."""
        self._client.execute(code)

    def wait_until_dead(self) -> None:
        wait_until(lambda: not self._manager.is_alive())

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
