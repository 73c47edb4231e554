"""The parts of an array on the devices, as text and HTML."""
