"""The public path of what `install` reports: `tpunb.virtual.installation.failure`."""

from tpunb.virtual.patch.state import current, failure

__all__ = ["current", "failure"]
