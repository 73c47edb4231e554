"""Tensors and control flow that TensorFlow's constant folding must not see through."""

from __future__ import annotations

from tpunb.virtual._tensorflow import AttrValue, NodeDef, dtypes
from tpunb.virtual.graph.function_def import CONTROL_FLOW, control_inputs
from tpunb.virtual.graph.nodes import Add, type_of

# Their stateful twins differ in one thing: constant folding leaves them alone.
_STATEFUL = {
    "StatelessWhile": "While",
    "StatelessIf": "If",
    "StatelessCase": "Case",
    "PartitionedCall": "StatefulPartitionedCall",  # one that XLA compiles: it may hold a loop
}
_INT32 = type_of(dtypes.int32)


def hide(add: Add, name: str, device: str, tensor: str, kind: AttrValue) -> str:
    """Hides from TensorFlow's optimizer where a tensor comes from.

    Args:
        add: Writes further nodes.
        name: The node for which the tensor is hidden.
        device: Where that node runs.
        tensor: What is hidden.
        kind: Its type.

    Returns:
        What to read in its place.
    """
    # A placeholder's default may be overridden, so that the optimizer does not fold it.
    unknown = AttrValue()
    unknown.shape.unknown_rank = True
    name = f"{name}/hidden"
    add("PlaceholderWithDefault", name, device, [tensor], dtype=kind, shape=unknown)
    return f"{name}:output:0"


def keep_from_folding(add: Add, node: NodeDef, *, in_body: bool = False) -> None:
    """Keeps from TensorFlow's optimizer what it does wrong here.

    Control flow and compiled calls of constants are folded by running them in one thread,
    where a loop that is not lowered recurses once a round: 30,000 rounds overflow the stack.
    And a tensor that is stacked with itself becomes a tile, whose constants then wait for
    the first branch of the condition around it, whichever branch it is in.

    What control flow waits for is lost too: a wait for a node from which data comes as well is
    removed, and then the data, if no branch needs it in the end. So one node waits for all, which
    nothing comes from.

    Args:
        add: Writes further nodes.
        node: A node of any kind, which may be changed. Something must need it: what is
            stateful runs in any case.
        in_body: Whether it is in a body of control flow. Its inputs may be one tensor there
            although they have two names.
    """
    node.op = _STATEFUL.get(node.op, node.op)
    if node.op in CONTROL_FLOW:
        _keep_waits(add, node)
    if in_body and node.op == "Pack":
        node.input[0] = hide(add, node.name, node.device, node.input[0], node.attr["T"])
    if node.op == "Case":
        # Of a constant index TensorFlow's optimizer makes a call without side effects, and
        # removes the call with all its updates of variables if nobody reads its result.
        node.input[0] = hide(add, node.name, node.device, node.input[0], _INT32)


def _keep_waits(add: Add, node: NodeDef) -> None:
    """Makes a node wait for its control inputs by one that the optimizer leaves as it is."""
    waits = [f"^{name}" for name in control_inputs(node)]
    if not waits:
        return
    kept = [text for text in node.input if not text.startswith("^")]
    trigger = add("ControlTrigger", f"{node.name}/waits", node.device, waits)
    del node.input[:]
    node.input.extend([*kept, f"^{trigger}"])
