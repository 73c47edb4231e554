"""Environment variables that matter for TPUs; others are never shown, not even by name."""

from __future__ import annotations

from collections.abc import Mapping

from tpunb._util.secret_masking import mask, secrets_in

# fmt: off
SHOWN = (
    "TPUNB_TPU", "TPUNB_REQUIRE_TPU", "TPUNB_WIDGETS", "TPUNB_LOG",
    # Which TPU: TensorFlow's own resolver
    "TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_API_DISCOVERY_URL",
    "GCE_METADATA_HOST", "GCE_METADATA_IP",
    # The platforms
    "COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION", "COLAB_TPU_1VM", "COLAB_TPU_ADDR", "COLAB_GPU",
    "KAGGLE_KERNEL_RUN_TYPE", "KUBERNETES_SERVICE_HOST",
    # The slice, and what of it a process takes: libtpu
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
    # gRPC goes through a proxy that these name
    "grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy",
)
# fmt: on
_LONGEST = 200


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set, with their values as they may be shown."""
    secrets = secrets_in(environment)
    return {name: _cut(mask(environment[name], secrets)) for name in SHOWN if environment.get(name)}


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
