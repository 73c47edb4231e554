"""Run JAX's own tests of arrays, shardings and transformations on the virtual TPU, a v5e-8.

    make jax-tests JAX=~/jax
    cd tests && python -m jax_tests ~/jax [--processes 2] [--files array_test]

`~/jax` is a clone of the recorded release, its git directory, or an unpacked archive. The test
files are copied to a temporary folder. The results are compared with `record.json`: the command
lists what got worse and what got better, and fails if something got worse. `--write` records
improvements in `record.json` and in `docs/maintainers/jax-tests.md`. Add a test that no longer passes by hand,
with the reason.
"""

from __future__ import annotations

import importlib.metadata
import sys

from peer_tests.command import main
from peer_tests.peer import Peer

VERSION = "0.10.2"

JAX = Peer(
    name="JAX",
    package="jax_tests",
    version=VERSION,
    installed=lambda: importlib.metadata.version("jax"),
    repository="https://github.com/jax-ml/jax",
    tag=f"jax-v{VERSION}",
    revisions=(),
    version_file="jax/version.py",
    version_line=r'^_version = "([^"]+)"',
    # The files about devices, shardings and transformations. They need no other file of the clone.
    tests=(
        "array_test",
        "pjit_test",
        "shard_map_test",
        "pmap_test",
        "layout_test",
        "memories_test",
        "multi_device_test",
        "multibackend_test",
        "mesh_utils_test",
        "python_callback_test",
        "aot_test",
    ),
    path_of=lambda name: f"tests/{name}.py",
    longest=("shard_map_test", "pjit_test", "pmap_test"),
    environment={
        "PYTHONHASHSEED": "0",
        "JAX_NUM_GENERATED_CASES": "5",
        "PYTHONWARNINGS": "ignore::tpunb.errors.TpuWarning",  # JAX counts warnings
    },
)

if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(main(JAX, __doc__.split("\n\n")[0]))
