"""`python -m tpunb`: the command `tpunb`, if its script is not on the path."""

import sys

from tpunb.cli import main

if __name__ == "__main__":
    sys.exit(main())
