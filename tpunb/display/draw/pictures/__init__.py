"""The pictures of `tpunb.draw`."""
