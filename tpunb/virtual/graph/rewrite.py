"""A function written anew from another one, with nodes replaced, added or left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import control_inputs


class Rewrite:
    """Writes a function from another one, which is not changed.

    Nodes are written to `result` in any order, and refer to each other by the names that they
    have in the old function. `finish` then points every reference at what replaced it.

    Args:
        function: The old function. The new one has its signature and attributes.

    Attributes:
        result: The new function, as far as it is written.
    """

    def __init__(self, function: FunctionDef) -> None:
        self.result = FunctionDef()
        self.result.CopyFrom(function)
        del self.result.node_def[:]
        self._tensors: dict[str, str] = {}
        self._waits: dict[str, Sequence[str]] = {}

    def keep(self, node: NodeDef) -> NodeDef:
        """Writes a copy of a node and returns it, to be changed."""
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        return copy

    def replace(self, tensors: Mapping[str, str]) -> None:
        """Has tensors read in place of others, which may be replaced in their turn.

        Args:
            tensors: References to the new tensors, by those to the old ones.
        """
        self._tensors.update((old, new) for old, new in tensors.items() if old != new)

    def drop(self, name: str, waits: Iterable[str] = ()) -> None:
        """Leaves out a node or an argument.

        Args:
            name: Its name.
            waits: The nodes that everything which waited for it waits for now.
        """
        self._waits[name] = list(waits)

    def finish(self) -> FunctionDef:
        """Points all references at what replaced their targets and returns the new function."""
        for node in self.result.node_def:
            data = [self._tensor(text) for text in node.input if not text.startswith("^")]
            waits = [f"^{name}" for name in self._remaining(control_inputs(node))]
            del node.input[:]
            node.input.extend([*data, *waits])
        for output, text in dict(self.result.ret).items():
            self.result.ret[output] = self._tensor(text)
        ends = dict(self.result.control_ret)
        self.result.control_ret.clear()
        for output, name in ends.items():
            for number, end in enumerate(self._remaining([name])):
                self.result.control_ret[f"{output}_{number}" if number else output] = end
        del self.result.signature.control_output[:]
        self.result.signature.control_output.extend(self.result.control_ret)
        return self.result

    def _tensor(self, text: str) -> str:
        while text in self._tensors:
            text = self._tensors[text]
        return text

    def _remaining(self, names: Iterable[str]) -> list[str]:
        """The nodes to wait for, once those that are left out are replaced."""
        pending, seen = list(names), set[str]()
        remaining: dict[str, None] = {}
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                if name in self._waits:
                    pending.extend(self._waits[name])
                else:
                    remaining[name] = None
        return list(remaining)
