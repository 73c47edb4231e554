"""This machine's TPU setup: platform, software, devices, processes and memory."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping

from tpunb._util.secret_masking import mask, secrets_in
from tpunb.machine.detect import Search, find_tpu
from tpunb.machine.processes_using_tpu import Holding, find_holders
from tpunb.machine.resources import Memory, measure
from tpunb.machine.setup_problem import SetupProblem
from tpunb.machine.software import Software, find_software

# fmt: off
SHOWN = (
    "TPUNB_TPU", "TPUNB_REQUIRE_TPU", "TPUNB_WIDGETS", "TPUNB_VERDICTS", "TPUNB_LOG",
    # Which TPU, for TensorFlow's own resolver
    "TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_API_DISCOVERY_URL",
    "GCE_METADATA_HOST", "GCE_METADATA_IP",
    # The platforms
    "COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION", "COLAB_TPU_1VM", "COLAB_TPU_ADDR", "COLAB_GPU",
    "KAGGLE_KERNEL_RUN_TYPE", "KUBERNETES_SERVICE_HOST",
    # The slice and a process's part of it, for libtpu
    "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES",
    "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT",
    "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_SKIP_MDS_QUERY", "TPU_LOAD_LIBRARY",
    "TPU_LIBRARY_PATH", "ALLOW_MULTIPLE_LIBTPU_LOAD", "LIBTPU_INIT_ARGS", "XRT_TPU_CONFIG",
    "PJRT_DEVICE", "JAX_PLATFORMS",
    # TensorFlow, XLA and Keras
    "KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS",
    "TF_XLA_FLAGS", "XLA_FLAGS", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
    "NEXT_PLUGGABLE_DEVICE_USE_C_API",
    # The proxies of gRPC
    "grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy",
)
# fmt: on
"""Environment variables to show. Others are never shown, not even their names."""
_LONGEST = 200  # characters of a variable's value


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """A machine's TPU setup.

    Attributes:
        system: The operating system and the processor's architecture.
        search: The platform, and the result of the search for a TPU.
        software: Installed versions.
        holding: The processes that use the TPU.
        variables: Relevant environment variables that are set, without secrets.
        memory: The memory.
    """

    system: str
    search: Search
    software: Software
    holding: Holding
    variables: Mapping[str, str]
    memory: Memory

    @property
    def problems(self) -> tuple[SetupProblem, ...]:
        """The problems, blocking ones first."""
        local = self.search.tpu == "local" and not self.search.tpu_only_from_env
        return self.problems_for(local_tpu=local)

    def problems_for(self, *, local_tpu: bool) -> tuple[SetupProblem, ...]:
        """Return the problems of using this machine's TPU, or another TPU.

        Args:
            local_tpu: Whether to use this machine's TPU.
        """
        problems = [
            *self.search.problems(local_tpu=local_tpu),
            *self.software.problems(local_tpu=local_tpu),
            # The client of a Pod leaves its host's chips to the worker, which holds them.
            *(self.holding.problems() if local_tpu else ()),
            *self.memory.problems(),
        ]
        return tuple(sorted(problems, key=lambda problem: not problem.stops))


def look(environment: Mapping[str, str] | None = None) -> Machine:
    """Inspect this machine without importing TensorFlow or connecting to a TPU.

    Args:
        environment: Environment variables; by default the process's own.
    """
    environment = os.environ if environment is None else environment
    secrets = secrets_in(environment)
    shown = {name: mask(environment[name], secrets) for name in SHOWN if environment.get(name)}
    search = find_tpu(environment)
    devices = (*search.chips.files, *search.chips.unknown)
    return Machine(
        system=f"{platform.system()} {platform.machine()}".strip(),
        search=search,
        software=find_software(environment),
        holding=find_holders(devices, environment),
        variables={
            name: value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
            for name, value in shown.items()
        },
        memory=measure(),
    )
