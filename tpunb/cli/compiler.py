"""`tpunb compiler`: an environment for the TPU's own compiler."""

from __future__ import annotations

import argparse
from typing import Any

from tpunb.cli.command import Failed, add_command

_EPILOG = """\
examples:
  tpunb compiler install
  tpunb compiler install --python /usr/bin/python3.12
  tpunb compiler status
  tpunb compiler remove

exit codes: 0 done; 1 there is no compiler; 2 the command failed
"""


def add_to(commands: Any) -> None:
    """Adds the command and its own commands to those of the parser."""
    compiler = add_command(
        commands,
        "compiler",
        help="install, show and remove the TPU's own compiler",
        description="The TPU's own compiler, libtpu, with the JAX that it needs, in an environment "
        "of its own in your cache folder. Your JAX, libtpu and Keras stay as they are.",
        epilog=_EPILOG,
    )
    actions = compiler.add_subparsers(required=True, metavar="ACTION", title="actions")
    install = add_command(
        actions,
        "install",
        _install,
        help="install it, or another release of it",
        description="Download JAX and libtpu with pip, or with uv where Python has no pip, into "
        "your cache folder. libtpu is under Google Cloud Platform's terms.",
        epilog="example:\n  tpunb compiler install",
    )
    install.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the Python that runs it, 3.11 or later (default: the one of this command)",
    )
    add_command(
        actions,
        "status",
        _status,
        help="show where it is, its releases and its size",
        description="Show which compiler is used (folder, Python, releases and size), and how many "
        "verdicts on programs are kept.",
        epilog="example:\n  tpunb compiler status",
    )
    add_command(
        actions,
        "remove",
        _remove,
        help="delete what install made, and the verdicts that are kept",
        description="Delete the environment that install made and the verdicts that are kept, and "
        "nothing else.",
        epilog="example:\n  tpunb compiler remove",
    )


def _install(args: argparse.Namespace) -> None:
    from tpunb.compiler import environment

    made = environment.install(args.python, say=lambda text: print(text, flush=True))
    print(f"Installed the TPU's compiler in {made.folder}")


def _status(args: argparse.Namespace) -> None:
    from tpunb._util.units import byte_count, counted
    from tpunb.compiler import environment, kept_verdicts, libtpu

    del args
    made = environment.find()
    if made is not None:
        print(f"folder    {made.folder}\npython    {made.python}")
        print(f"releases  {environment.listed(made.versions)}")
        print(f"size      {byte_count(made.size)}")
    count, size = kept_verdicts.size()
    if count:
        kept = f"{counted(count, 'verdict')}, {byte_count(size)}, in {kept_verdicts.folder()}"
        print(f"kept      {kept}")
    if why := libtpu.why_unavailable():
        raise Failed(str(why))
    print(f"used      {libtpu.described()}")


def _remove(args: argparse.Namespace) -> None:
    from tpunb.compiler import environment, kept_verdicts

    del args
    removed = list(filter(None, [kept_verdicts.remove(), environment.remove()]))
    print("\n".join(f"Removed {folder}" for folder in removed) or "Nothing is installed.")
