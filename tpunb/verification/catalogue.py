"""All claims, in the order in which they are tried."""

from __future__ import annotations

from tpunb.verification.claims import Claim
from tpunb.verification.collectives import ACROSS, COLLECTIVES
from tpunb.verification.interrupting import INTERRUPTING, RECONNECTING
from tpunb.verification.known_errors import KNOWN_ERRORS
from tpunb.verification.numbers import NUMBERS
from tpunb.verification.rules import RULE_CLAIMS
from tpunb.verification.topology import REPLICAS, TOPOLOGY
from tpunb.verification.training import TRAINING
from tpunb.verification.variables import VARIABLES

__all__ = ["CLAIMS"]

CLAIMS: tuple[Claim, ...] = (
    *TOPOLOGY,
    *REPLICAS,
    *COLLECTIVES,
    *ACROSS,
    *VARIABLES,
    *NUMBERS,
    *TRAINING,
    *RULE_CLAIMS,
    *KNOWN_ERRORS,
    *INTERRUPTING,
    *RECONNECTING,
)
"""What a TPU refuses comes after what it does, and what could leave it unusable last."""
