"""The strict check, which finds what a TPU refuses before a replica function runs.

`examination` combines the checks. Refusals come from these modules:

- `refused_ops`: operations, types and variables, found in the graph. `graph/kernels.py` says which
  operations have no TPU kernel, and why.
- `core_memory`: tensors and variables that exceed a core's memory.
- `open_sizes`: sizes that are not fixed.
- `lowering`: all errors of XLA itself, which runs in another process (`xla`) and gets `stand_ins`
  for collectives and the host's part. XLA is not asked if `accepted_ops` shows that the function
  compiles.

`advice` gives warnings about code that is slow on a TPU, and never refuses it. The rules' names,
for `strict={...}`, are in `tpunb/virtual/strictness.py`.
"""

from __future__ import annotations
