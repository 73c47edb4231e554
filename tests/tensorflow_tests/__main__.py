"""Run TensorFlow's own tests of TPU strategies on the virtual TPU, with two replicas.

    make tensorflow-tests TENSORFLOW=~/tensorflow
    cd tests && python -m tensorflow_tests ~/tensorflow [--processes 2] [--files values_test]

`~/tensorflow` is a clone of the recorded release, its git directory, or an unpacked archive. The
test files are copied to a temporary folder. The results are compared with `record.json`: the
command lists what got worse and what got better, and fails if something got worse. `--write`
records improvements in `record.json` and in `docs/maintainers/tensorflow-tests.md`. Add a test that no longer
passes by hand, with the reason.
"""

from __future__ import annotations

import sys

from peer_tests.command import main
from peer_tests.peer import Peer

from tpunb.machine.tested_releases import tensorflow_version

VERSION = "2.21"
_FOLDER = "tensorflow/python/distribute"

TENSORFLOW = Peer(
    name="TensorFlow",
    package="tensorflow_tests",
    version=VERSION,
    installed=lambda: tensorflow_version(),
    repository="https://github.com/tensorflow/tensorflow",
    tag=f"v{VERSION}.0",
    revisions=(f"origin/r{VERSION}",),
    version_file="tensorflow/tf_version.bzl",
    version_line=r'^TF_VERSION = "([^"]+)"',
    # The files with a TPU strategy as a parameter. They need no other file of the clone.
    tests=(
        "strategy_common_test",
        "strategy_gather_test",
        "custom_training_loop_gradient_test",
        "custom_training_loop_input_test",
        "values_test",
        "values_v2_test",
        "vars_test",
        "distributed_variable_test",
        "mirrored_values_test",
        "input_lib_test",
        "input_lib_type_spec_test",
        "metrics_v1_test",
        "checkpointing_test",
        "moving_averages_test",
        "random_generator_test",
        "tf_function_test",
        "test_util_test",
        "strategy_combinations_test",
        "saved_model_test",
    ),
    path_of=lambda name: (
        f"{_FOLDER}/{'integration_test/' if name == 'saved_model_test' else ''}{name}.py"
    ),
    longest=("distributed_variable_test", "vars_test", "values_test", "random_generator_test"),
    environment={
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONHASHSEED": "0",  # some tests are named after members of a set
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    },
)

if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(main(TENSORFLOW, __doc__.split("\n\n")[0]))
