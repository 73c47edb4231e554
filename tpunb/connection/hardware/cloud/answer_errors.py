"""Errors for answers of the Cloud TPU API other than a usable TPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpunb._util.units import counted
from tpunb.connection.hardware.attempt import SIMULATE
from tpunb.connection.hardware.cloud.http import Answer
from tpunb.errors import ConnectError, nearest

if TYPE_CHECKING:
    from tpunb.connection.hardware.cloud.node import Node
    from tpunb.machine.metadata_server import MetadataError

__all__ = ["explain_refusal", "explain_silence", "not_found", "refuse_unusable"]

_SHOWN = 5


def explain_silence(error: MetadataError, what: str, tried: list[str]) -> ConnectError:
    """The error if neither the environment nor the metadata server has the zone or project."""
    tried.append(f"the {what} from the metadata server: {error.reason}")
    return ConnectError(
        f"The {what} of the TPU is not known: this does not seem to be a machine of Google Cloud "
        f"({error.reason}).",
        fix=f"Give it with --{what}, as %tpu_connect NAME --zone ZONE --project PROJECT, or give "
        f"an address: %tpu_connect grpc://HOST:8470. {SIMULATE}",
        tried=tried,
    )


def explain_refusal(
    answer: Answer,
    name: str,
    where: str,
    project: str,
    token: Callable[[str], str | None],
    tried: list[str],
) -> ConnectError:
    """The error for a request that the API refuses or does not answer."""
    describe = f"gcloud compute tpus tpu-vm describe {name} {where}"
    said = f" ({answer.reason})" if answer.reason else ""
    if answer.is_disabled:
        message = f"The Cloud TPU API is not enabled in the project {project}."
        fix = f"Enable it: gcloud services enable tpu.googleapis.com --project={project}"
    elif answer.status == 401:
        message = f"The Cloud TPU API requires credentials to look up the TPU {name}{said}."
        fix = (
            "Log in with `gcloud auth application-default login`, install google-auth with "
            '%pip install "google-auth[requests]", and connect again.'
        )
    elif answer.status == 403:
        message = f"You may not look up the TPU {name}{said}."
        fix = (
            "Ask for the role roles/tpu.viewer in the project, or give the machine's service "
            f"account the scope cloud-platform; try it with: {describe}"
        )
    elif answer.status < 400 and answer.status:
        message = (
            f"What answers as the Cloud TPU API is something else: {answer.host} sends no "
            f"description of a TPU ({answer})."
        )
        fix = (
            "Check the network for a proxy or a login page in the way, and the variables "
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU and TPU_API_DISCOVERY_URL; try it with: "
            f"{describe}"
        )
    elif answer.status:
        message = f"The Cloud TPU API fails: {answer.host} answers {answer}."
        fix = f"Connect again in a while; try it with: {describe}"
    else:
        message = f"The Cloud TPU API cannot be reached: {answer.host}: {answer.reason}."
        fix = (
            "Check the network, and https_proxy if it is set; or give the worker's address: "
            "%tpu_connect grpc://HOST:8470. "
            f"{SIMULATE}"
        )
    return ConnectError(message, fix=fix, tried=tried)


def not_found(
    name: str,
    zone: str,
    project: str,
    others: Sequence[str] | None,
    where: str,
    tried: list[str],
) -> ConnectError:
    """The error if there is no TPU of that name."""
    message = f"There is no TPU {name!r} in the zone {zone} of the project {project}."
    fix = f"See which there are: gcloud compute tpus tpu-vm list {where}"
    if others:
        near = nearest(name, others, most=_SHOWN)
        near += [other for other in sorted(others) if other not in near]
        shown = ", ".join(near[:_SHOWN])
        more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
        fix = f"Choose one of {shown}{more}, or give another --zone or --project."
    elif others is not None:
        fix = f"Give the TPU's --zone and --project: there is no TPU here. {SIMULATE}"
    if others is not None:
        tried.append(f"the zone {zone} has {counted(len(others), 'TPU')}")
    return ConnectError(message, fix=fix, tried=tried)


_WAIT = ("CREATING", "STARTING", "RESTARTING", "REIMAGING", "STOPPING", "UNHIDING")
_GONE = ("PREEMPTED", "TERMINATED")
_AGAIN = (
    "create it again, as a queued resource (gcloud compute tpus queued-resources create) to wait "
    "for one, with --spot if it may be taken back again."
)


def refuse_unusable(node: Node, tried: list[str]) -> None:
    """Raises if a TPU cannot be used.

    Raises:
        ConnectError: It is not READY, is unhealthy or has no address.
    """
    state = node.state
    if state == "READY" and node.is_healthy and node.endpoints:
        return
    message = f"The TPU {node.name} is {state}."
    if state in _WAIT:
        message = f"The TPU {node.name} is {state}: it cannot be connected to yet."
        fix = f"Wait until it is READY, then connect again; see with: {node.command('describe')}"
    elif state == "STOPPED":
        fix = f"Start it: {node.command('start')}"
    elif state in _GONE:
        taken = "Google Cloud took it back" if state == "PREEMPTED" else "it is gone"
        message = f"The TPU {node.name} is {state}: {taken}, with all that was on it."
        fix = f"Delete it with `{node.command('delete')}` and {_AGAIN}"
    elif state == "DELETING":
        message = f"The TPU {node.name} is DELETING: it is gone, with all that was on it."
        fix = f"See with `{node.command('describe')}` when it has gone, then {_AGAIN}"
    elif state == "REPAIRING":
        message = f"The TPU {node.name} is REPAIRING: Google Cloud is repairing it."
        fix = f"Wait until it is READY; see with: {node.command('describe')}"
    elif state != "READY":
        fix = f"Check its state: {node.command('describe')}"
    elif not node.is_healthy:
        message, fix = _unhealthy(node)
    else:
        message = f"The TPU {node.name} is READY and has no network address."
        fix = f"Check its state: {node.command('describe')}"
    raise ConnectError(message, fix=fix, tried=tried)


def _unhealthy(node: Node) -> tuple[str, str]:
    why = f": {node.health_description}" if node.health_description else ""
    last = f" Its last symptom is {node.symptoms[-1]}." if node.symptoms else ""
    message = f"The TPU {node.name} is READY and not healthy: {node.health}{why}.{last}"
    if node.health == "UNHEALTHY_MAINTENANCE":
        return message, f"Wait for the end of the maintenance: {node.command('describe')}"
    again = f"Stop it and start it again: {node.command('stop')} && {node.command('start')}"
    if node.symptoms and "MEMORY" in node.symptoms[-1]:
        again += (
            ". Its memory ran out: drop dataset.cache(), and reduce buffers and the batch size."
        )
    return message, again
