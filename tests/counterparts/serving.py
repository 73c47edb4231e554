"""A worker in its own process, which ends with its standard input: see workers.py.

python serving.py tensorflow PORT CPUS
python serving.py tpu PORT CORES STATUSES
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent import futures
from typing import Any


def ready(address: str) -> None:
    """Tell the parent process where the worker listens."""
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def tensorflow_server(port: int, cpus: int) -> None:
    sys.modules.update(keras=None, tf_keras=None)  # halves TensorFlow's start
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(device_count={"CPU": cpus})
    cluster = {"worker": [f"127.0.0.1:{port}"]}
    server = tf.distribute.Server(
        cluster, job_name="worker", task_index=0, protocol="grpc", config=config
    )
    ready(server.target.removeprefix("grpc://"))


def field(number: int, value: bytes) -> bytes:
    """Encode a field of bytes in a protocol buffer."""
    return bytes([number << 3 | 2, len(value)]) + value


def device_attributes(name: str) -> bytes:
    """Encode a `DeviceAttributes`, without TensorFlow, which takes seconds to import."""
    incarnation = bytes([6 << 3 | 1]) + (1234567).to_bytes(8, "little")
    memory = bytes([4 << 3, 0x80, 0x80, 0x80, 0x80, 0x04])  # 1 GiB
    full = f"/job:worker/replica:0/task:0/device:{name}"
    kind = name.partition(":")[0]
    return field(1, full.encode()) + field(2, kind.encode()) + memory + incarnation


def tpu_worker(port: int, cores: int, statuses: int) -> Any:
    """Start a gRPC server that has a TPU's devices and never finishes a call.

    It answers the first `statuses` requests for its devices; later requests hang.
    """
    import grpc

    over = threading.Event()
    names = ["CPU:0", "TPU_SYSTEM:0", *(f"TPU:{core}" for core in range(cores))]
    listed = b"".join(field(1, device_attributes(name)) for name in names)
    asked = iter(range(statuses))

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            method = details.method.rpartition("/")[2]
            answer = {
                "GetStatus": self.status,
                "KeepAlive": self.keep_alive,
                "CreateContext": lambda request, context: b"",
                "CloseContext": lambda request, context: b"",
            }.get(method, self.hang)
            if method == "StreamingEnqueue":
                return grpc.stream_stream_rpc_method_handler(self.hang_streaming)
            return grpc.unary_unary_rpc_method_handler(answer)

        def status(self, request: bytes, context: Any) -> bytes:
            if next(asked, None) is None:
                return self.hang(request, context)
            return listed

        def keep_alive(self, request: bytes, context: Any) -> None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Unable to find a context_id")

        def hang(self, request: bytes, context: Any) -> bytes:
            over.wait()
            return b""

        def hang_streaming(self, requests: Any, context: Any) -> Any:
            for _ in requests:
                over.wait()
            yield b""

    server = grpc.server(futures.ThreadPoolExecutor(64), handlers=[Handler()])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    ready(f"127.0.0.1:{port}")
    return server


if __name__ == "__main__":
    sys.modules.update(keras=None, tf_keras=None)  # halves TensorFlow's start
    kind, *numbers = sys.argv[1:]
    server = (tensorflow_server if kind == "tensorflow" else tpu_worker)(*map(int, numbers))
    sys.stdin.read()
    os._exit(0)  # neither TensorFlow's server nor a hanging call can be stopped
