"""Asks an HTTP server for a JSON object, within a time limit that holds."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from tpunb.bounded import bounded
from tpunb.masking import mask

__all__ = ["Answer", "ask"]

_MOST_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What an HTTP server answered.

    Attributes:
        host: Which one.
        status: Its status; 0 if it did not answer.
        json: What it sent, if that is a JSON object.
        reason: Why there is no answer, or what the server says against it.
    """

    host: str
    status: int
    json: dict[str, Any] | None = None
    reason: str = ""

    @property
    def is_disabled(self) -> bool:
        """Whether the API is not enabled in the project."""
        return "SERVICE_DISABLED" in self.reason or "has not been used" in self.reason

    def __str__(self) -> str:
        if not self.status:
            return self.reason
        return f"{self.status}" + (f", {self.reason}" if self.reason else "")


def ask(url: str, token: Callable[[str], str | None], deadline: float) -> Answer:
    """Asks for a JSON object.

    Args:
        url: Where.
        token: Gives the token for an address, or None.
        deadline: By `time.monotonic`; it holds for servers that send a byte now and then, too.
    """
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    try:
        # Before the thread: what it has tried is told in order.
        secret = token(url)
        return bounded(lambda: _get(url, host, secret, deadline), deadline)
    except TimeoutError:
        return Answer(host, 0, reason="no answer in time")
    except Exception as error:  # of urllib, http, ssl and sockets, each has its own
        return Answer(host, 0, reason=_said(error))


def _get(url: str, host: str, secret: str | None, deadline: float) -> Answer:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """A redirection would take the token along to another host."""

        def redirect_request(self, *arguments: Any) -> None:
            return None

    # Proxies are for the way out: a server nearby is asked itself.
    ways = [] if url.startswith("https://") else [urllib.request.ProxyHandler({})]
    opener = urllib.request.build_opener(NoRedirect, *ways)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    if secret:
        request.add_unredirected_header("Authorization", f"Bearer {secret}")
    try:
        with opener.open(request, timeout=max(0.05, deadline - time.monotonic())) as response:
            return Answer(host, response.status, _object(response.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(host, error.code, None, _reason(_object(error.read(_MOST_BYTES))))


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _reason(body: dict[str, Any] | None) -> str:
    """What an error of Google's APIs says: its message, and its code for programs."""
    error = (body or {}).get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    reasons = [
        str(one["reason"])
        for one in (details if isinstance(details, list) else [])
        if isinstance(one, dict) and "reason" in one
    ]
    words = [str(error.get("status", "")), *reasons, str(error.get("message", "")).split("\n")[0]]
    return mask(": ".join(word for word in words if word))[:300]


def _said(error: Exception) -> str:
    """An error of a connection in a few words."""
    inner = getattr(error, "reason", error)
    said = getattr(inner, "strerror", None) or type(inner).__name__
    return "no answer in time" if isinstance(inner, TimeoutError) else mask(str(said))[:200]
