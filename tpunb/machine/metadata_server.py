"""A client of the Compute Engine metadata server, with an enforced timeout.

TensorFlow's own client has no timeout. Here each request runs in its own thread, so the caller
is not blocked by a name server that does not answer or by a server that trickles bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from tpunb._util.deadline import Running
from tpunb._util.logs import logger
from tpunb.errors import ConnectError

_log = logger("machine")

_HOST_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_IP")  # TensorFlow's variables, in its order
_HOST = "metadata.google.internal"
_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_FLAVOR = "Metadata-Flavor"
_TIMEOUT = 1.0  # seconds; on Google Cloud it answers in milliseconds
_MOST_BYTES = 1 << 20
_SAME = 0.1  # timeouts that differ by fewer seconds count as equal
_MEMORY = 10.0  # seconds until a silent server is tried again


class MetadataError(ConnectError):
    """A metadata server that does not answer, or another server at its address.

    Attributes:
        reason: The reason, in a few words.
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


class _Silence(NamedTuple):
    """A server that did not answer.

    Attributes:
        until: The time from which it is asked again.
        timeout: The seconds that it had for its answer.
        reason: The reason of the error.
    """

    until: float
    timeout: float
    reason: str


_silent: dict[str, _Silence] = {}
"""The servers that did not answer, by host."""


def metadata(
    path: str,
    *,
    timeout: float = _TIMEOUT,
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """Return a value from the metadata server at the address that TensorFlow uses.

    A silent server is not tried again for ten seconds, unless the timeout is longer. So several
    lookups cost one timeout.

    Args:
        path: The value's path below `computeMetadata/v1/`, such as `"instance/zone"`.
        timeout: Seconds in total, including resolving the server's name.
        environment: Environment variables; by default the process's own.

    Returns:
        The value, or None if the path does not exist.

    Raises:
        MetadataError: No server answers in time, or it is not a metadata server.
    """
    environment = os.environ if environment is None else environment
    host = _HOST
    variable = next((name for name in _HOST_VARIABLES if environment.get(name, "").strip()), None)
    if variable is not None:
        host = environment[variable].strip()
        if not _HOST_PATTERN.fullmatch(host):
            raise MetadataError(f"{variable} is not a host or host:port", passing=True)
    silence = _silent.get(host)
    if silence and time.monotonic() < silence.until and timeout <= silence.timeout + _SAME:
        raise MetadataError(silence.reason)
    try:
        value = _asked(host, path, timeout)
        _log.debug("metadata server, %s: %s", path, "none" if value is None else "answered")
        return value
    except MetadataError as error:
        _log.debug("metadata server, %s: %s", path, error.reason)
        if not error.passing:
            _silent[host] = _Silence(time.monotonic() + _MEMORY, timeout, error.reason)
        raise


def forget() -> None:
    """Forget which servers did not answer."""
    _silent.clear()


def _asked(host: str, path: str, timeout: float) -> str | None:
    """Make one request in a thread, which is abandoned on timeout."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import quote

    end = time.monotonic() + timeout

    def get() -> str | None:
        # A direct connection: proxies from the environment do not apply.
        with contextlib.closing(HTTPConnection(host, timeout=timeout)) as connection:
            target = f"/computeMetadata/v1/{quote(path.lstrip('/'), safe='/?=&')}"
            connection.request("GET", target, headers={_FLAVOR: "Google"})
            response = connection.getresponse()
            # A captive portal answers any request.
            if response.headers.get(_FLAVOR) != "Google":
                raise MetadataError(f"the server at {host} is not a metadata server")
            if response.status == 404:
                return None
            if response.status != 200:
                raise MetadataError(f"{host} answers {response.status}", passing=True)
            body = b""
            while len(body) < _MOST_BYTES and (part := response.read1(_MOST_BYTES)):
                body += part
                if time.monotonic() > end:  # so that the thread of a trickling server ends too
                    raise TimeoutError
            return body.decode("utf-8", errors="replace").strip()

    try:
        return Running(get).result(end)
    except TimeoutError:
        raise MetadataError(f"{host} does not answer within {round(timeout, 1):g} s") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise MetadataError(f"{host}: {reason}") from None
