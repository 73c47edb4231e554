"""Frozen descriptions of what there is to show, free of TensorFlow's classes.

An adapter fills a description once; text, picture, table and widget are drawn
from it and never see the framework.
"""

from tpunb.describe.annotations import Annotation, Annotations
from tpunb.describe.connection import ConnectionDescription
from tpunb.describe.history import HistoryDescription, describe_history
from tpunb.describe.replicas import (
    ReplicaValuesDescription,
    describe_replica_values,
    only_replicas,
)
from tpunb.describe.topology import (
    TopologyDescription,
    describe_accelerator,
    describe_device_assignment,
    describe_topology,
)

__all__ = [
    "Annotation",
    "Annotations",
    "ConnectionDescription",
    "HistoryDescription",
    "ReplicaValuesDescription",
    "TopologyDescription",
    "describe_accelerator",
    "describe_device_assignment",
    "describe_history",
    "describe_replica_values",
    "describe_topology",
    "only_replicas",
]
