"""`tpunb topology`: draw the hosts, chips and cores of a TPU type."""

from __future__ import annotations

import argparse
from typing import Any

from tpunb.cli.command import add_command
from tpunb.tpu.default_tpu import DEFAULT_TPU

_EPILOG = """\
examples:
  tpunb topology           the default virtual TPU, v5e-8
  tpunb topology v3-32     hosts, chips and cores of a Pod slice
  tpunb topology 12        a generic TPU of 12 cores

exit codes: 0 success; 2 the type does not exist
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    topology = add_command(
        commands,
        "topology",
        _topology,
        help="draw the topology of a TPU type",
        description="Draw the hosts, chips and cores of a TPU type. No TPU is needed.",
        epilog=_EPILOG,
    )
    topology.add_argument(
        "type",
        nargs="?",
        default=DEFAULT_TPU,
        metavar="TYPE",
        help="a type such as v5e-8 or v3-32, or a number of cores (default: %(default)s)",
    )


def _topology(args: argparse.Namespace) -> None:
    from tpunb.display.describe.topology_description import describe_accelerator
    from tpunb.display.draw.topology.text import topology_text
    from tpunb.tpu.types import accelerator

    print(topology_text(describe_accelerator(accelerator(args.type))))
