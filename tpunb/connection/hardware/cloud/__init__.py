"""Looks up a TPU by name in the Cloud TPU API, with a deadline.

TensorFlow's own lookup needs packages that it does not depend on (googleapiclient and
oauth2client) and has no timeout. `service` replaces them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from tpunb._util.secret_masking import mask
from tpunb.connection.hardware.cloud.answer_errors import (
    explain_refusal,
    not_found,
    refuse_unusable,
)
from tpunb.connection.hardware.cloud.asking import Asking
from tpunb.connection.hardware.cloud.http import ask
from tpunb.connection.hardware.cloud.node import Node, node_of, service, where
from tpunb.errors import ConnectError

__all__ = ["Node", "ask", "look_up", "refuse_unusable", "service"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:\d+|\d+(?:\.\d+){3}|localhost")
_FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/nodes/([^/]+)")


def look_up(
    name: str,
    *,
    zone: str | None = None,
    project: str | None = None,
    timeout: float,
    tried: list[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """Gets a TPU's description from the Cloud TPU API.

    Args:
        name: Its name, or the full one, `projects/P/locations/Z/nodes/N`.
        zone: Its zone; by default from the environment or the metadata server.
        project: Its project; by default from the same.
        timeout: Seconds in total.
        tried: Requests and answers are appended to it.
        environment: Environment variables; by default the process's own.

    Returns:
        The TPU, in whatever state it is.

    Raises:
        ConnectError: There is no TPU of this name, or the API cannot be reached.
    """
    tried = [] if tried is None else tried
    environment = os.environ if environment is None else environment
    asking = Asking(time.monotonic() + timeout, tried, environment)
    if full := _FULL_NAME.fullmatch(name.strip()):
        project, zone, name = full.groups()
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        raise _no_name(name, tried)
    zone = asking.location("zone", zone)
    project = asking.location("project", project)
    token = asking.token()
    urls = asking.urls(name, zone, project)
    for version, url in urls:
        answer = ask(url, token, asking.deadline)
        tried.append(f"{answer.host}, {version}: {answer}")
        if answer.status == 200 and answer.json is not None:
            return node_of(answer.json, name, zone, project, version)
        if answer.status != 404 or answer.is_disabled:
            break
    if answer.status != 404:
        raise explain_refusal(answer, name, where(zone, project), project, token, tried)
    others = asking.names(urls, token)
    raise not_found(name, zone, project, others, where(zone, project), tried)


def _no_name(name: str, tried: list[str]) -> ConnectError:
    shown = mask(name)[:80]
    fix = "Give a TPU's name, local, or an address: %tpu_connect grpc://HOST:8470."
    if _ADDRESS.fullmatch(name):
        fix = f"Write an address with grpc:// before it: %tpu_connect grpc://{shown}."
    return ConnectError(f"{shown!r} is not a name of a TPU.", fix=fix, tried=tried)
