"""How a command can end other than well, beside the errors that name their mend."""

from __future__ import annotations

__all__ = ["Failed", "Interrupted"]


class Failed(Exception):
    """The command did its work, and the answer is no; the message says why. Exit code 1."""


class Interrupted(Exception):
    """The user has stopped the command; the message says where. Exit code 130."""
