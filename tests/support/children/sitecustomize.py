"""Make TensorFlow cheap to import, in each process that the tests start.

Python imports a module of this name by itself, before the program. `counterparts.children.PATHS` has this folder.
"""

from __future__ import annotations

import gc
import sys

UNUSED = ("matplotlib", "pandas", "sklearn")
"""Packages that Keras imports if they are installed.

Only programs that import them themselves need them.
"""

KERAS = ("keras", "tf_keras")


class NotForKeras:
    """A finder that refuses `UNUSED` while Keras is being imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for one of `UNUSED`; leave the rest to other finders."""
        if name in UNUSED and any(map(_is_being_imported, KERAS)):
            raise ModuleNotFoundError(f"Tests import Keras without {name}.", name=name)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


sys.meta_path.insert(0, NotForKeras)
# TensorFlow creates hundreds of thousands of objects. The collector would walk them again and
# again: a quarter of the import, and of each trace.
gc.set_threshold(20_000, 20, 20)
