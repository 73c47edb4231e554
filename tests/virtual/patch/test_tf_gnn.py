"""TF-GNN, a library with its own subclass of `tf.distribute.TPUStrategy`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from counterparts.children import run_code
from support.tiers import THOROUGH

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    THOROUGH,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow_gnn") is None, reason="TF-GNN is not installed"
    ),
]

PROGRAM = """
import os, sys
import tpunb.virtual

tpunb.virtual.install(2)
import tensorflow as tf
import tensorflow_gnn as tfgnn
from tensorflow_gnn import runner
from tensorflow_gnn.models import vanilla_mpnn

SCHEMA = '''
context { features { key: "label" value { dtype: DT_INT32 } } }
node_sets {
  key: "node"
  value { features { key: "features" value { dtype: DT_FLOAT shape { dim { size: 4 } } } } }
}
edge_sets { key: "edge" value { source: "node" target: "node" } }
'''
spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(SCHEMA))
labels = {(tfgnn.CONTEXT, None, "label"): (0, 1)}
graph = tfgnn.random_graph_tensor(spec, sample_dict=labels)
example = tfgnn.write_example(graph).SerializeToString()


class Graphs(runner.DatasetProvider):
    def get_dataset(self, context):
        return tf.data.Dataset.from_tensors(example).repeat(8)


def model(spec):
    graph = given = tf.keras.layers.Input(type_spec=spec)
    features = lambda nodes, node_set_name: nodes["features"]
    graph = tfgnn.keras.layers.MapFeatures(node_sets_fn=features)(graph)
    update = vanilla_mpnn.VanillaMPNNGraphUpdate(
        units=1, message_dim=2, receiver_tag=tfgnn.SOURCE, l2_regularization=5e-4, dropout_rate=0.1
    )
    return tf.keras.Model(given, update(graph))


strategy = runner.TPUStrategy("")
assert isinstance(strategy, tf.distribute.TPUStrategy)
assert strategy.num_replicas_in_sync == 2
folder, graphs = sys.argv[1], Graphs()
trained = runner.run(
    train_ds_provider=graphs,
    train_padding=runner.TightPadding(spec, graphs),
    model_fn=model,
    optimizer_fn=tf.keras.optimizers.Adam,
    trainer=runner.KerasTrainer(
        strategy=strategy,
        model_dir=folder,
        steps_per_epoch=2,
        summarize_every_n_steps="never",
        backup_and_restore=False,
        restore_best_weights=False,
        verbose=0,
    ),
    task=runner.GraphBinaryClassification("node", label_fn=runner.ContextLabelFn("label")),
    gtspec=spec,
    global_batch_size=4,
)
assert trained.trained_model.optimizer.iterations.numpy() == 2
exported = tf.saved_model.load(os.path.join(folder, "export"))
(found,) = exported.signatures["serving_default"](examples=tf.constant([example] * 3)).values()
print("logits of shape", found.shape)
"""


def test_its_runner_trains_and_exports_a_model(tmp_path: Path) -> None:
    done = run_code(PROGRAM, tmp_path, TF_USE_LEGACY_KERAS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "logits of shape (3, 1)"
