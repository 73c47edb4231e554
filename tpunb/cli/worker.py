"""`tpunb worker`: serve one host of a virtual Pod."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from typing import Any

from tpunb.cli.command import OutputError, add_command, whole_number
from tpunb.connection.cluster.worker import MOST_CORES, serve
from tpunb.tpu.default_tpu import WORKER_PORT

_EPILOG = """\
examples:
  tpunb worker --cores 8                 a host of a virtual v3-32, on port 8470
  tpunb worker --cores 8 --port 0        on any free port

In the notebook, give one worker for each host of the TPU type:

  %tpu_connect --simulate v3-32 --workers a:8470,b:8470,c:8470,d:8470

The port is open to the network, on all interfaces, without a password. Anyone who
reaches it can run TensorFlow as you, and read and write your files with it. Admit
only the notebook's machine and the Pod's other workers. Repeat the first line for
each of them:

  sudo iptables  -A INPUT -p tcp --dport 8470 -s ADDRESS -j ACCEPT
  sudo iptables  -A INPUT -p tcp --dport 8470 ! -i lo -j DROP
  sudo ip6tables -A INPUT -p tcp --dport 8470 ! -i lo -j DROP

The last two lines alone close the port to all other machines. You can then reach a
Pod of one worker by ssh from the notebook's machine:

  ssh -N -L 8470:localhost:8470 WORKER

exit codes: 0 stopped; 2 the port is not available
"""
_ANNOUNCEMENT = """\
A worker with {cores} listens on port {port}.

  In the notebook:  %tpu_connect --workers {host}:{port}

The port is open to the network, on all interfaces, without a password. Anyone who
reaches it can run TensorFlow as you, and read and write your files with it. Restrict
it unless you trust the network: see `tpunb worker --help`.

Ctrl-C stops it."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    worker = add_command(
        commands,
        "worker",
        _worker,
        help="run a host of a virtual Pod, for notebooks on this and other machines",
        description="Serve virtual TPU cores to a notebook, until Ctrl-C stops it. The port is "
        "open to the network without a password: see below.",
        epilog=_EPILOG,
    )
    worker.add_argument(
        "--cores",
        type=whole_number("a number of cores", 1, MOST_CORES),
        default=8,
        metavar="N",
        help="the number of virtual cores (default: 8)",
    )
    worker.add_argument(
        "--port",
        type=whole_number("a port", 0, 65535),
        default=WORKER_PORT,
        metavar="P",
        help=f"the port to listen on; 0 for any free port (default: {WORKER_PORT})",
    )


def _worker(args: argparse.Namespace) -> None:
    many = "1 virtual TPU core" if args.cores == 1 else f"{args.cores} virtual TPU cores"

    def announce(port: int) -> None:
        text = _ANNOUNCEMENT.format(cores=many, host=socket.gethostname(), port=port)
        try:
            print(text, flush=True)
        except OutputError as error:
            # Notebooks can connect without this text, so the server goes on.
            text = f"tpunb: {error} The worker runs on port {port}."
            with contextlib.suppress(OutputError):
                print(text, file=sys.stderr, flush=True)

    serve(args.cores, args.port, ready=announce)
    with contextlib.suppress(OutputError):  # the reader may have gone
        print("The worker has stopped.", flush=True)
    # TensorFlow's server cannot be stopped: see tensorflow/tensorflow#23190, closed unmerged.
    sys.stderr.flush()
    os._exit(0)
