"""Frozen descriptions of the values to show, free of TensorFlow's classes.

An adapter fills a description once; text, picture, table and widget are drawn
from it and never see the framework.
"""

from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.history import HistoryDescription, describe_history
from tpunb.display.describe.replicas import (
    ReplicaValuesDescription,
    describe_chosen_replicas,
    describe_replica_values,
)
from tpunb.display.describe.topology import (
    TopologyDescription,
    describe_accelerator,
    describe_device_assignment,
    describe_topology,
    with_program,
)
from tpunb.tpu.annotations import Annotation, Annotations

__all__ = [
    "Annotation",
    "Annotations",
    "ConnectionDescription",
    "HistoryDescription",
    "ReplicaValuesDescription",
    "TopologyDescription",
    "describe_accelerator",
    "describe_chosen_replicas",
    "describe_device_assignment",
    "describe_history",
    "describe_replica_values",
    "describe_topology",
    "with_program",
]
