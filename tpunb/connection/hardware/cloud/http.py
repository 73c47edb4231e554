"""Gets a JSON object over HTTP, with a deadline."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from tpunb._util.deadline import bounded
from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask

__all__ = ["Answer", "ask"]

_log = logger("connection")

_MOST_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an HTTP server.

    Attributes:
        host: The server.
        status: The HTTP status; 0 without an answer.
        json: The body, if it is a JSON object.
        reason: Why there is no answer, or the server's error message.
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
    """Gets a JSON object.

    Args:
        url: The URL.
        token: Returns the token for a URL, or None.
        deadline: By `time.monotonic`; also enforced on servers that trickle bytes.
    """
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    try:
        # Outside of the thread, so that `tried` stays in order.
        secret = token(url)
        answer = bounded(lambda: _get(url, host, secret, deadline), deadline)
    except TimeoutError:
        answer = Answer(host, 0, reason="no answer in time")
    except Exception as error:  # urllib, http, ssl and sockets each have their own
        answer = Answer(host, 0, reason=_shortly(error))
    _log.debug("GET %s: %s", url, answer)
    return answer


def _get(url: str, host: str, secret: str | None, deadline: float) -> Answer:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Following a redirect would send the token to another host."""

        def redirect_request(self, *arguments: Any) -> None:
            return None

    # A plain-HTTP server is a local one, for which no proxy is used.
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
    """The message and the code of an error of Google's APIs."""
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


def _shortly(error: Exception) -> str:
    """A connection error in a few words."""
    inner = getattr(error, "reason", error)
    said = getattr(inner, "strerror", None) or type(inner).__name__
    return "no answer in time" if isinstance(inner, TimeoutError) else mask(str(said))[:200]
