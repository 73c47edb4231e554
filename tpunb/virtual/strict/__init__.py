"""Finds what a TPU refuses before a replica function runs.

`lint` searches the graph and `lowering` asks XLA, unless `known_ops` and `known_loops` show that
it compiles. `source_lines` leads from a node to a line of Python; `examination` combines them.
"""

from __future__ import annotations
