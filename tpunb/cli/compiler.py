"""`tpunb compiler`: a Python environment for the TPU's own compiler."""

from __future__ import annotations

import argparse
from typing import Any

from tpunb.cli.command import Failed, add_command
from tpunb.compiler.ask.environment import DOWNLOAD

_EPILOG = """\
examples:
  tpunb compiler install
  tpunb compiler install --python /usr/bin/python3.12
  tpunb compiler status
  tpunb compiler remove

exit codes: 0 success; 1 no compiler is available; 2 the command failed
"""


def add_to(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    compiler = add_command(
        commands,
        "compiler",
        help="install, show and remove the TPU's own compiler",
        description="Manage the TPU's own compiler: libtpu, with the JAX that it needs. Both are "
        "in an environment in your cache folder; your own JAX, libtpu and Keras do not change.",
        epilog=_EPILOG,
    )
    actions = compiler.add_subparsers(required=True, metavar="ACTION", title="actions")
    install = add_command(
        actions,
        "install",
        _install,
        help="install the compiler, or another release of it",
        description="Download JAX and libtpu with pip, or with uv if Python has no pip, into "
        f"your cache folder: {DOWNLOAD} to download, 1 GiB on disk. Google Cloud Platform's terms "
        "apply to libtpu.",
        epilog="example:\n  tpunb compiler install",
    )
    install.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the Python for the compiler, 3.11 or later (default: the Python of this command)",
    )
    add_command(
        actions,
        "status",
        _status,
        help="show the compiler's folder, releases and size",
        description="Show which compiler is used (folder, Python, releases and size) and how many "
        "verdicts on programs are stored.",
        epilog="example:\n  tpunb compiler status",
    )
    add_command(
        actions,
        "remove",
        _remove,
        help="delete the installed compiler and the stored verdicts",
        description="Delete the environment that `install` made and the stored verdicts, and "
        "nothing else.",
        epilog="example:\n  tpunb compiler remove",
    )


def _install(args: argparse.Namespace) -> None:
    from tpunb.compiler.ask import environment

    installed = environment.install(args.python, say=lambda text: print(text, flush=True))
    print(f"Installed the TPU's compiler in {installed.folder}")


def _status(args: argparse.Namespace) -> None:
    from tpunb._util.units import byte_count, counted
    from tpunb.compiler.ask import environment, kept_verdicts, libtpu

    del args
    installed = environment.find()
    if installed is not None:
        print(f"folder    {installed.folder}\npython    {installed.python}")
        print(f"releases  {environment.listed(installed.versions)}")
        print(f"size      {byte_count(installed.size)}")
    count, size = kept_verdicts.size()
    if count:
        stored = f"{counted(count, 'verdict')}, {byte_count(size)}, in {kept_verdicts.folder()}"
        print(f"stored    {stored}")
    if why := libtpu.why_unavailable():
        raise Failed(str(why))
    print(f"used      {libtpu.described()}")


def _remove(args: argparse.Namespace) -> None:
    from tpunb.compiler.ask import environment, kept_verdicts

    del args
    removed = list(filter(None, [kept_verdicts.remove(), environment.remove()]))
    print("\n".join(f"Removed {folder}" for folder in removed) or "Nothing is installed.")
