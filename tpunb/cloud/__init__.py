"""Looks a TPU up by its name: what Google Cloud's TPU API says of it, within a time limit.

TensorFlow's own look-up needs packages that it does not bring along (googleapiclient and
oauth2client) and asks without a time limit. `service` answers in their place.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from tpunb.cloud.asking import Asking
from tpunb.cloud.http import ask
from tpunb.cloud.node import PORT, Node, node_of, service, where
from tpunb.cloud.states import explain_refusal, not_found, refuse_unusable
from tpunb.errors import ConnectError
from tpunb.masking import mask

__all__ = ["PORT", "Node", "ask", "look_up", "refuse_unusable", "service"]

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
    """Asks the Cloud TPU API for a TPU.

    Args:
        name: Its name, or the full one, `projects/P/locations/Z/nodes/N`.
        zone: Its zone; by default what the environment or the metadata server says.
        project: Its project; by default the same.
        timeout: Seconds for all of it.
        tried: What is asked and what answers is added to this.
        environment: Environment variables; by default the process's own.

    Returns:
        The TPU, in whatever state it is.

    Raises:
        ConnectError: There is none of this name, or it cannot be asked for.
    """
    tried = [] if tried is None else tried
    environment = os.environ if environment is None else environment
    asking = Asking(time.monotonic() + timeout, tried, environment)
    if full := _FULL_NAME.fullmatch(name.strip()):
        project, zone, name = full.groups()
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        raise _no_name(name, tried)
    zone = asking.place("zone", zone)
    project = asking.place("project", project)
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
    mend = "Give a TPU's name, local, or an address: %tpu_connect grpc://HOST:8470."
    if _ADDRESS.fullmatch(name):
        mend = f"An address is written with grpc:// before it: %tpu_connect grpc://{shown}."
    return ConnectError(f"{shown!r} is no name of a TPU.", mend=mend, tried=tried)
