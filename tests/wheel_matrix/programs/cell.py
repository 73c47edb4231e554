"""Connect to a virtual TPU, and run a cell on its replicas: `python cell.py tensorflow`."""

import sys

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell()
for cell in (
    f"%load_ext tpunb\n%tpu_connect --simulate v3-8 --framework {sys.argv[1]}",
    "%%tpu_run\nctx.all_reduce('sum', replica_id)",
    "%tpu_disconnect",
):
    shell.run_cell(cell).raise_error()
