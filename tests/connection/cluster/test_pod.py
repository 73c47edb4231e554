"""A virtual Pod whose hosts are worker processes gives the same results as a single process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counterparts.children import run_script
from support.patience import PATIENCE

from tpunb.connection.cluster.local_workers import LocalWorkers

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

TRAINING = Path(__file__).parents[2] / "pods" / "training.py"


@pytest.fixture(scope="module")
def pairs() -> Iterator[LocalWorkers]:
    """Start two workers with two cores each."""
    workers = LocalWorkers(2, 2, timeout=PATIENCE)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def single(tf: Any) -> Any:
    """Return this process's results on a virtual TPU."""
    from pods.training import programs

    return json.loads(json.dumps(programs([])))


@pytest.fixture(scope="module")
def pod(pairs: LocalWorkers) -> Any:
    """Return the results of a Pod of two workers."""
    return run_script(TRAINING, *pairs.addresses, keras=True)


@pytest.mark.parametrize("program", ["loop", "fit", "talk", "cell", "saved", "diverged"])
def test_results_equal_a_single_processs(pod: Any, single: Any, program: str) -> None:
    for actual, expected in zip(pod[program], single[program], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_input_functions_are_called_once_for_each_worker(pod: Any) -> None:
    hosts = pod["hosts"]
    assert pod["pipelines"]["calls"] == [[host, hosts] for host in range(hosts)]


def test_each_worker_feeds_its_own_cores(pod: Any) -> None:
    hosts, cores = pod["hosts"], pod["replicas"] // pod["hosts"]
    batch = [host * 100 + core for host in range(hosts) for core in range(cores)]
    assert pod["pipelines"]["batches"][0] == batch


def test_replicas_and_memory(pod: Any) -> None:
    assert pod["replicas"] == 4
    assert len(set(pod["memory"])) == 1  # every core holds every variable
    assert pod["memory"][0] > 0


def test_values_are_shown(pod: Any, single: Any) -> None:
    assert "3.0" in pod["text"]
    assert pod["text"] == single["text"]


def test_mistakes_are_explained(pod: Any) -> None:
    assert pod["mistakes"] == {"dataset": "12", "python": "18", "closed": "14"}
