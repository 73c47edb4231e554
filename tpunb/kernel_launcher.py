"""The entry point of kernel specs, `python -m tpunb.kernel_launcher`.

Separate from the kernel, so that almost nothing is imported before the notebook's
folder has left the search path, as in ipykernel_launcher.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A random.py beside the notebook must not take the place of Python's own. IPython
    # puts the folder back when the kernel stands.
    if sys.path and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
        del sys.path[0]

    from tpunb.notebook.kernels.app import main

    main()
