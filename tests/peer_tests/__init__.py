"""What the commands that run a framework's own tests on a virtual TPU share."""
