"""One seed: its program, run both ways, and made small if it shows something."""

from __future__ import annotations

import functools
import logging

import tensorflow as tf
from differential.compare import Finding, compare
from differential.generator import Program, generate
from differential.shrink import shrink


def start() -> None:
    """Gives TensorFlow cores for eight replicas."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 17
    tf.config.set_logical_device_configuration(cpu, devices)
    tf.config.threading.set_inter_op_parallelism_threads(16)
    tf.get_logger().setLevel(logging.ERROR)


def check(seed: int, *, strict: bool = False, seconds: float = 60) -> Finding | None:
    """What the program of a seed shows, as the smallest program that shows it."""
    compared = functools.partial(compare, strict=strict)
    # Where AutoGraph has nothing to write, there is time for twice as many.
    program: Program = generate(seed, autograph=seed % 2 == 0)
    finding = compared(program)
    return None if finding is None else shrink(finding, compared, seconds)
