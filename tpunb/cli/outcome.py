"""How a command can fail, other than by an error that names its fix."""

from __future__ import annotations


class Failed(Exception):
    """The command ran and the result is negative; the message says why. Exit code 1."""


class Interrupted(Exception):
    """The user interrupted the command; the message says where.

    Attributes:
        code: The exit code, 128 plus the number of the signal, as in shells.
    """

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code
