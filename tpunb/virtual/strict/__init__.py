"""The strict check, which finds what a TPU refuses before a replica function runs.

`lint` searches the graph, and `lowering` asks XLA unless `known_ops` shows that it compiles;
`examination` combines them.
"""

from __future__ import annotations
