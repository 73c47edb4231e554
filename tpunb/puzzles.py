"""Puzzles that the TPU's compiler grades.

`check` runs an answer, compiles it, and says how close it is to the best known solution.
`scores` lists what is solved.
"""

from __future__ import annotations

from tpunb.teach.puzzles import check, scores

__all__ = ["check", "scores"]
