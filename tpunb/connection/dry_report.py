"""The report of a dry run, for displays and for the process that started it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from tpunb._util.atomic_files import write_file
from tpunb.connection.tpu_connection import open_connections
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import accelerator

if TYPE_CHECKING:
    from tpunb.jax.virtual.dry_record import Calls, DryRecord


def dry_run_of(connection: Any) -> tuple[list[Calls], int, float] | None:
    """Return what a connection's dry run has found, for `dry_run_text`; None without one."""
    record: DryRecord | None = getattr(connection, "dry", None)
    if record is None:
        return None
    limit = HARDWARE[accelerator(connection.tpu).family].usable_bytes
    return record.calls, limit, record.seconds


def dry_report() -> dict[str, Any] | None:
    """Return the report of the open connection's dry run, with its text; None without one."""
    from tpunb.display.draw.programs.dry_run import dry_run_json, dry_run_text

    connections: list[Any] = list(open_connections())
    for connection in connections:
        if (found := dry_run_of(connection)) is not None:
            return {"tpu": connection.tpu, **dry_run_json(*found), "text": dry_run_text(*found)}
    return None


def save_dry_report(path: str) -> None:
    """Write the report to a file, if there is a dry run."""
    with contextlib.suppress(OSError):  # the process that asked for it is gone
        if (report := dry_report()) is not None:
            write_file(path, json.dumps(report))
