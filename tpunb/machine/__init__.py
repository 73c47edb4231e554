"""The state of this machine: platform, TPU, software, devices, processes and memory."""
