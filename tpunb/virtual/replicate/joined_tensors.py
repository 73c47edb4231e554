"""The values of all replicas in one tensor, and each replica's part of them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.graph.function_def import Reference, data_inputs
from tpunb.virtual.graph.nodes import Add, add_constant, argument_name, integer, type_of
from tpunb.virtual.graph.static_tensors import Sizes, StaticTensors
from tpunb.virtual.replicate.joined_forms import FRESH, Form, Take, listed_shape
from tpunb.virtual.replicate.variance import Analysis, Role, Variance

_INT32 = type_of(dtypes.int32)


class JoinedTensors:
    """Writes tensors in one form from another; each form of a tensor once.

    Args:
        analysis: What of the replica function varies, and the plans of joined nodes.
        add: Writes a node.
        device: Where joined tensors are.
        replicas: How many replicas there are.
        tensor: Gives what a replica reads for a tensor.
    """

    def __init__(
        self,
        analysis: Analysis,
        add: Add,
        device: str,
        replicas: int,
        tensor: Callable[[Reference, int], str],
    ) -> None:
        self._analysis = analysis
        self._add = add
        self._device = device
        self._replicas = replicas
        self._tensor = tensor
        self._known: dict[tuple[Reference, Form], str] = {}
        self._constants: dict[tuple[str, Sizes, bytes], str] = {}
        self._widened: dict[str, str] = {}
        self._parts: dict[Reference, str] = {}

    @property
    def _statics(self) -> StaticTensors:
        if self._analysis.statics is None:
            raise AssertionError("No node is joined.")
        return self._analysis.statics

    def of_replica(self, source: Reference, replica: int) -> str:
        """A replica's part of what a joined node gives."""
        given = self._given(source)
        if given is None or given is Form.SHARED:
            return self.taken(source, Form.SHARED)
        if source not in self._parts:
            self._parts[source] = self._part(source, given)
        return f"{self._parts[source]}:output:{replica}"

    def constant(self, take: Take) -> str:
        """The integers that a joined node takes."""
        return self._integers(take.constant, take.kind)

    def input(self, source: Reference, take: Take) -> str:
        """A tensor as a joined node takes it."""
        text = self.taken(source, take.form)
        if take.sizes is None or take.sizes == self._sizes(source):
            return text
        # Only axes of size 1 are added in front: their number says which shape it is.
        name = f"{self._name(source, take.form)}_of_{len(take.sizes)}_axes"
        if name not in self._widened:
            sizes = (self._replicas, *take.sizes)
            self._widened[name] = self._reshaped(name, source, text, sizes)
        return self._widened[name]

    def taken(self, source: Reference, form: Form) -> str:
        """A tensor in a form; it is written unless it has it."""
        key = source, form
        if key not in self._known:
            self._known[key] = self._written(source, form)
        return self._known[key]

    def _written(self, source: Reference, form: Form) -> str:
        given = self._given(source)
        if given is form:
            return self._output(source)
        if form is Form.SHARED:
            return self._tensor(source, 0)
        if form is Form.LISTED:
            return self._list(source)
        if given is None or (given is Form.SHARED and form is Form.SUMMED):
            return self._joined(source, form)
        if form is Form.INNER or (given is Form.INNER and form is Form.STACKED):
            return self._turned(source, form)
        if given is Form.SHARED:
            return self._repeated(source, form)
        if form is Form.SUMMED:
            return self._sum(source)
        if given is Form.INNER:
            given = Form.STACKED
        sizes = self._whole(source, form)
        return self._reshaped(self._name(source, form), source, self.taken(source, given), sizes)

    def _given(self, source: Reference) -> Form | None:
        """The form in which a tensor is there; None for one of each replica."""
        argument = self._analysis.arguments.get(source.source)
        if argument is not None and argument.is_stacked:
            return argument.form
        if self._analysis.roles.get(source.source) is Role.JOINED:
            return self._analysis.plans[source.source].gives[self._statics.place(source)]
        varies = self._analysis.variance(source) is Variance.VARYING
        return None if varies else Form.SHARED

    def _output(self, source: Reference) -> str:
        """The name of what a joined node gives."""
        if self._analysis.is_stacked(source):
            return argument_name(source.source)
        plan = self._analysis.plans.get(source.source)
        if plan is None:
            return self._tensor(source, 0)
        return f"{source.source}{plan.output or source.suffix}"

    def _sizes(self, source: Reference) -> Sizes:
        sizes = self._statics.sizes(source)
        if sizes is None:
            raise AssertionError(f"The shape of {source} is not known.")
        return sizes

    def _whole(self, source: Reference, form: Form) -> Sizes:
        """The shape of all replicas' values in a form."""
        sizes = self._sizes(source)
        if form is Form.ROWS:
            return (self._replicas * sizes[0], *sizes[1:])
        if form is Form.INNER:
            rows = [self._replicas * size for size in sizes[1:2]] or [self._replicas]
            return (sizes[0], *rows, *sizes[2:])
        return (self._replicas, *sizes)

    def _kind(self, source: Reference) -> AttrValue:
        return type_of(self._statics.dtype(source))

    def _name(self, source: Reference, form: Form | None = None) -> str:
        """How the nodes that are written for a tensor are called."""
        parts = [part for part in source.suffix.split(":") if part]
        return "/".join(
            [source.source, "_".join(["joined", *parts, form.name.lower() if form else "parts"])]
        )

    # Writing nodes.

    def _joined(self, source: Reference, form: Form) -> str:
        """Joins the values that replicas have of their own."""
        values = [self._tensor(source, replica) for replica in range(self._replicas)]
        name, kind, count = self._name(source, form), self._kind(source), integer(self._replicas)
        if form is Form.SUMMED:
            self._add("AddN", name, self._device, values, T=kind, N=count)
            return f"{name}:sum:0"
        if form is Form.ROWS or (form is Form.INNER and len(self._sizes(source)) > 1):
            inputs = [*values, self._integers(int(form is Form.INNER))]
            self._add("ConcatV2", name, self._device, inputs, T=kind, N=count, Tidx=_INT32)
        elif form is Form.STACKED and self._sizes(source):
            # Joined as rows it can be both, and is copied once.
            sizes = self._whole(source, form)
            return self._reshaped(name, source, self.taken(source, Form.ROWS), sizes)
        else:
            axis = integer(int(form is Form.INNER))
            self._add("Pack", name, self._device, values, T=kind, N=count, axis=axis)
        return f"{name}:output:0"

    def _turned(self, source: Reference, form: Form) -> str:
        """Moves the replicas from the first axis to the second, or back."""
        name, sizes = self._name(source, form), self._sizes(source)
        back = form is Form.STACKED
        text = self.taken(source, Form.INNER if back else Form.STACKED)
        if back:
            apart = (sizes[0], self._replicas, *sizes[1:])
            text = self._reshaped(f"{name}/apart", source, text, apart)
        order = [1, 0, *range(2, len(sizes) + 1)]
        inputs, kind = [text, self._integers(order)], self._kind(source)
        turned = f"{name}/turned"
        self._add("Transpose", turned, self._device, inputs, T=kind, Tperm=_INT32)
        text = f"{turned}:y:0"
        return text if back else self._reshaped(name, source, text, self._whole(source, form))

    def _list(self, source: Reference) -> str:
        """Makes a list without elements for all replicas, where each would make its own."""
        node = self._statics.node(source)
        if node is None or node.op not in FRESH:
            raise AssertionError(f"{source} is not a new list.")
        shape, length = data_inputs(node)
        name = self._name(source, Form.LISTED)
        whole = self._integers(listed_shape(self._statics.value(shape), self._replicas))
        inputs = [whole, self.taken(length, Form.SHARED)]
        kind = node.attr["element_dtype"]
        self._add(node.op, name, self._device, inputs, shape_type=_INT32, element_dtype=kind)
        return f"{name}:handle:0"

    def _repeated(self, source: Reference, form: Form) -> str:
        """Repeats the one value of all replicas for each."""
        whole = self._whole(source, Form.STACKED)
        name, kind = self._name(source, form), self._kind(source)
        sizes = self._integers(whole)
        inputs = [self.taken(source, Form.SHARED), sizes]
        self._add("BroadcastTo", f"{name}/all", self._device, inputs, T=kind, Tidx=_INT32)
        text = f"{name}/all:output:0"
        if form is Form.STACKED:
            return text
        return self._reshaped(name, source, text, self._whole(source, form))

    def _sum(self, source: Reference) -> str:
        name, kind = self._name(source, Form.SUMMED), self._kind(source)
        axis = self._integers(0)
        inputs = [self.taken(source, Form.STACKED), axis]
        self._add("Sum", name, self._device, inputs, T=kind, Tidx=_INT32)
        return f"{name}:output:0"

    def _part(self, source: Reference, given: Form) -> str:
        """Parts a tensor into those of the replicas."""
        name, kind, count = self._name(source), self._kind(source), integer(self._replicas)
        text, axis = self.taken(source, given), int(given is Form.INNER)
        if given is Form.ROWS or (axis and len(self._sizes(source)) > 1):
            inputs = [self._integers(axis), text]
            return self._add("Split", name, self._device, inputs, T=kind, num_split=count)
        place = integer(axis)
        return self._add("Unpack", name, self._device, [text], T=kind, num=count, axis=place)

    def _reshaped(self, name: str, source: Reference, text: str, sizes: Sizes) -> str:
        shape = self._integers(sizes)
        kind = self._kind(source)
        self._add("Reshape", name, self._device, [text, shape], T=kind, Tshape=_INT32)
        return f"{name}:output:0"

    def _integers(
        self, values: int | Sequence[int] | np.ndarray | None, kind: dtypes.DType = dtypes.int32
    ) -> str:
        """Writes integers once for all that take them."""
        array = np.asarray(values, kind.as_numpy_dtype)
        key = kind.name, array.shape, array.tobytes()
        if key not in self._constants:
            name = f"tpunb_joined_integers_{len(self._constants)}"
            self._constants[key] = add_constant(self._add, name, self._device, array, kind)
        return self._constants[key]
