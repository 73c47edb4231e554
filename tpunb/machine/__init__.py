"""What is on this machine: platform, TPU, software, devices, processes and memory."""
