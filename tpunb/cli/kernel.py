"""`tpunb kernel`: virtual TPUs in Jupyter's kernel picker."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tpunb._util.plain_text import aligned
from tpunb.cli.command import add_command, add_framework, add_keras

_EPILOG = """\
examples:
  tpunb kernel install v5e-8                for you, in each of your Jupyters
  tpunb kernel install v3-32 --sys-prefix   for this environment only
  tpunb kernel list
  tpunb kernel remove tpunb-v3-32

exit codes: 0 success; 2 the command failed
"""
_INSTALL_EPILOG = """\
examples:
  tpunb kernel install v5e-8
  tpunb kernel install 16 --name sixteen-cores
  tpunb kernel install v3-8 --sys-prefix
  tpunb kernel install v3-8 --keras 2
  tpunb kernel install v5e-8 --framework jax --judge off

Then choose "Python 3 (virtual TPU v5e-8)" in JupyterLab, Notebook or VS Code, or
give its name:
  jupyter nbconvert --execute --to notebook \\
      --ExecutePreprocessor.kernel_name=tpunb-v5e-8 notebook.ipynb
  papermill -k tpunb-v5e-8 notebook.ipynb out.ipynb
TPUNB_TPU=v3-32 in Jupyter's environment overrides the type.
"""


def add_to(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    kernel = add_command(
        commands,
        "kernel",
        help="install, list and remove Jupyter kernels with a virtual TPU",
        description="Manage Jupyter kernels in which any TPU notebook runs unmodified: "
        "the own names of TensorFlow and JAX address a virtual TPU.",
        epilog=_EPILOG,
    )
    actions = kernel.add_subparsers(required=True, metavar="ACTION", title="actions")
    _add_install(actions)
    add_command(
        actions,
        "list",
        _list,
        help="show the kernels installed by tpunb",
        description="Show the kernels installed by tpunb: name, TPU type and folder.",
        epilog="example:\n  tpunb kernel list",
    )
    remove = add_command(
        actions,
        "remove",
        _remove,
        help="remove kernels installed by tpunb",
        description="Remove kernels installed by tpunb. Other kernels are not touched.",
        epilog="example:\n  tpunb kernel remove tpunb-v5e-8",
    )
    remove.add_argument("names", nargs="+", metavar="NAME", help="a name that list shows")


def _add_install(actions: Any) -> None:
    install = add_command(
        actions,
        "install",
        _install,
        help="add a kernel with a virtual TPU",
        description="Add a kernel with a virtual TPU to Jupyter. It runs in the Python "
        f"environment of this command ({sys.executable}).",
        epilog=_INSTALL_EPILOG,
    )
    install.add_argument(
        "type", metavar="TYPE", help="a type such as v5e-8 or v3-32, or a number of cores"
    )
    install.add_argument(
        "--name", metavar="NAME", help="the kernel's name (default: tpunb- and the type)"
    )
    add_keras(install)
    add_framework(install)
    where = install.add_mutually_exclusive_group()
    where.add_argument(
        "--user", action="store_true", help="for you, in your own Jupyter folder (the default)"
    )
    where.add_argument(
        "--prefix",
        metavar="PATH",
        type=_folder,
        help="into an environment: PATH/share/jupyter/kernels",
    )
    where.add_argument(
        "--sys-prefix",
        dest="prefix",
        action="store_const",
        const=Path(sys.prefix),
        help=f"into the environment of this command ({sys.prefix})",
    )


def _folder(text: str) -> Path:
    """Return an environment's folder. An empty path would mean the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty: give the folder of an environment")
    return Path(text)


def _install(args: argparse.Namespace) -> None:
    from tpunb.notebook.kernels.specs import KernelOptions, install_kernel, installed_kernels

    options = KernelOptions(args.keras, args.framework, args.judge)
    kernel = install_kernel(args.type, name=args.name, prefix=args.prefix, options=options)
    done = "Replaced" if kernel.replaced else "Installed"
    print(f"{done} the kernel {kernel.name} (virtual TPU {kernel.tpu}) in {kernel.folder}")
    folders = {other.name: other.folder for other in installed_kernels()}
    if folders.get(kernel.name) != kernel.folder:
        print(
            "This Jupyter does not search that folder. Use the Jupyter of that environment, or set "
            f"JUPYTER_PATH={kernel.folder.parent.parent}",
            file=sys.stderr,
        )


def _list(args: argparse.Namespace) -> None:
    from tpunb.notebook.kernels.specs import installed_kernels

    del args
    kernels = installed_kernels()
    if not kernels:
        print("No kernels are installed. Add one: tpunb kernel install v5e-8", file=sys.stderr)
        return
    rows = [(kernel.name, kernel.tpu, str(kernel.folder)) for kernel in kernels]
    print("\n".join(aligned(rows)))


def _remove(args: argparse.Namespace) -> None:
    from tpunb.notebook.kernels.specs import remove_kernel

    for name in args.names:
        kernel = remove_kernel(name)
        print(f"Removed the kernel {kernel.name} from {kernel.folder}")
