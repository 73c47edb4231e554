"""The entry point of kernel specs, `python -m tpunb.kernel_launcher`.

It is separate from the kernel, so that almost nothing is imported before the notebook's folder is
removed from the search path, as in ipykernel_launcher.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A random.py beside the notebook must not replace Python's own module. IPython puts the
    # folder back when the kernel has started.
    if sys.path and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
        del sys.path[0]

    from tpunb.notebook.kernels.app import main

    main()
