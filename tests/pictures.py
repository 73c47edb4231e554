"""Make the documentation's pictures again, in both themes: the displays in Chromium.

    cd tests && python -m pictures

Look at the pictures before you commit them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Take the pictures, and copy them to the documentation."""
    images = ROOT / "docs" / "images"
    made = ROOT / "build" / "screenshots"
    scenes = f"{ROOT}/tests/browser/test_docs.py::test_scene"
    code = pytest.main([scenes, "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"])
    for picture in sorted(made.glob("docs-*.png")):
        shutil.copyfile(picture, images / picture.name)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
