"""Queries the Compute Engine metadata server, with an enforced timeout.

TensorFlow's own client has none. Here each request runs in a thread of its own, so neither
a name server that does not answer nor a server that trickles bytes blocks the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping

from tpunb._util.deadline import Running
from tpunb._util.logs import logger
from tpunb.errors import ConnectError

_log = logger("machine")

_HOST_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_IP")  # TensorFlow's, in its order
_HOST = "metadata.google.internal"
_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_FLAVOR = "Metadata-Flavor"
_TIMEOUT = 1.0  # seconds; on Google Cloud it answers in milliseconds
_MOST_BYTES = 1 << 20
_SAME = 0.1  # seconds of difference between timeouts that count as equal
_MEMORY = 10.0  # seconds until a server that did not answer is tried again
_TOKEN_PATH = "instance/service-accounts/default/token"


class MetadataError(ConnectError):
    """The metadata server does not answer, or another server answers.

    Attributes:
        reason: Why, in a few words.
        passing: Whether the next request may succeed.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(
            f"The metadata server of Google Cloud cannot be reached: {reason}.",
            fix="Run this on Google Cloud, or connect to an address: "
            "%tpu_connect grpc://HOST:8470.",
            tried=(f"the metadata server: {reason}",),
        )
        self.reason = reason
        self.passing = passing


_silent: dict[str, tuple[float, float, MetadataError]] = {}
"""Servers that did not answer: when to retry, the timeout that was used, and the error."""


def metadata(
    path: str,
    *,
    timeout: float = _TIMEOUT,
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """A value from the metadata server, at the address that TensorFlow uses.

    A server that did not answer is not tried again for ten seconds, unless with a longer
    timeout, so several lookups cost one timeout.

    Args:
        path: The value's path below `computeMetadata/v1/`, such as `"instance/zone"`.
        timeout: Seconds in total, including resolving the server's name.
        environment: Environment variables; by default the process's own.

    Returns:
        The value; None if the path does not exist.

    Raises:
        MetadataError: Nothing answers in time, or it is not a metadata server.
    """
    environment = os.environ if environment is None else environment
    host = _HOST
    variable = next((name for name in _HOST_VARIABLES if environment.get(name, "").strip()), None)
    if variable is not None:
        host = environment[variable].strip()
        if not _HOST_PATTERN.fullmatch(host):
            raise MetadataError(f"{variable} is not a host or host:port", passing=True)
    known = _silent.get(host)
    if known is not None and time.monotonic() < known[0] and timeout <= known[1] + _SAME:
        raise MetadataError(known[2].reason)
    try:
        found = _asked(host, path, timeout)
        # Not the value, which may be a token.
        _log.debug("metadata server, %s: %s", path, "none" if found is None else "answered")
        return found
    except MetadataError as error:
        _log.debug("metadata server, %s: %s", path, error.reason)
        if not error.passing:
            _silent[host] = (time.monotonic() + _MEMORY, timeout, error)
        raise


def access_token(*, timeout: float = _TIMEOUT, environment: Mapping[str, str] | None = None) -> str:
    """A token of the machine's default service account. It is a secret: never show it.

    Raises:
        MetadataError: There is no service account, or the server does not answer.
    """
    text = metadata(_TOKEN_PATH, timeout=timeout, environment=environment)
    if text is None:
        raise MetadataError("this machine has no service account", passing=True)
    try:
        token = json.loads(text)["access_token"]
    except (ValueError, TypeError, KeyError):
        token = None
    if not (isinstance(token, str) and token):
        # From None: the answer may contain the secret.
        raise MetadataError("it sent no token for the service account", passing=True) from None
    return token


def forget() -> None:
    """Clears the memory of servers that did not answer."""
    _silent.clear()


def _asked(host: str, path: str, timeout: float) -> str | None:
    """Makes one request, in a thread that is abandoned on timeout."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import quote

    end = time.monotonic() + timeout

    def get() -> str | None:
        # Direct: proxies in the environment do not apply.
        with contextlib.closing(HTTPConnection(host, timeout=timeout)) as connection:
            target = f"/computeMetadata/v1/{quote(path.lstrip('/'), safe='/?=&')}"
            connection.request("GET", target, headers={_FLAVOR: "Google"})
            response = connection.getresponse()
            # A captive portal answers any request.
            if response.headers.get(_FLAVOR) != "Google":
                raise MetadataError(f"what answers at {host} is not a metadata server")
            if response.status == 404:
                return None
            if response.status != 200:
                raise MetadataError(f"{host} answers {response.status}", passing=True)
            body = b""
            while len(body) < _MOST_BYTES and (part := response.read1(_MOST_BYTES)):
                body += part
                if time.monotonic() > end:  # the thread of a server that trickles ends too
                    raise TimeoutError
            return body.decode("utf-8", errors="replace").strip()

    try:
        return Running(get).result(end)
    except TimeoutError:
        raise MetadataError(f"{host} does not answer within {round(timeout, 1):g} s") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise MetadataError(f"{host}: {reason}") from None
