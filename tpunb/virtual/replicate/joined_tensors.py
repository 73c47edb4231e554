"""The values of all replicas in one tensor, and each replica's part of them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.graph.function_def import Reference
from tpunb.virtual.graph.nodes import Add, argument_name, integer, integers, type_of
from tpunb.virtual.graph.static_tensors import Sizes, StaticTensors
from tpunb.virtual.replicate.joined_forms import Form, Take
from tpunb.virtual.replicate.variance import Analysis, Role, Variance

_INT32 = type_of(dtypes.int32)

_WHOLE = {Form.ROWS: "rows", Form.STACKED: "stacked", Form.SUMMED: "summed"}


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
        if given is Form.SHARED:
            return self._repeated(source, form)
        if given is None:
            return self._joined(source, form)
        if form is Form.SUMMED:
            return self._sum(source)
        sizes = self._whole(source, form)
        return self._reshaped(self._name(source, form), source, self.taken(source, given), sizes)

    def _given(self, source: Reference) -> Form | None:
        """The form in which a tensor is there; None for one of each replica."""
        if self._analysis.is_stacked(source):
            return Form.STACKED
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
        return (self._replicas, *sizes)

    def _kind(self, source: Reference) -> AttrValue:
        return type_of(self._statics.dtype(source))

    def _name(self, source: Reference, form: Form | None = None) -> str:
        """How the nodes that are written for a tensor are called."""
        parts = [part for part in source.suffix.split(":") if part]
        return "/".join(
            [source.source, "_".join(["joined", *parts, _WHOLE[form] if form else "parts"])]
        )

    # Writing nodes.

    def _joined(self, source: Reference, form: Form) -> str:
        """Joins the values that replicas have of their own."""
        values = [self._tensor(source, replica) for replica in range(self._replicas)]
        name, kind, count = self._name(source, form), self._kind(source), integer(self._replicas)
        if form is Form.SUMMED:
            self._add("AddN", name, self._device, values, T=kind, N=count)
            return f"{name}:sum:0"
        if form is Form.ROWS:
            inputs = [*values, self._integers(0)]
            self._add("ConcatV2", name, self._device, inputs, T=kind, N=count, Tidx=_INT32)
        elif self._sizes(source):
            # Joined as rows it can be both, and is copied once.
            sizes = self._whole(source, form)
            return self._reshaped(name, source, self.taken(source, Form.ROWS), sizes)
        else:
            self._add("Pack", name, self._device, values, T=kind, N=count, axis=integer(0))
        return f"{name}:output:0"

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
        text = self.taken(source, given)
        if given is Form.ROWS:
            axis = self._integers(0)
            return self._add("Split", name, self._device, [axis, text], T=kind, num_split=count)
        return self._add("Unpack", name, self._device, [text], T=kind, num=count, axis=integer(0))

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
            value = integers(array, kind)
            self._add("Const", name, self._device, [], dtype=type_of(kind), value=value)
            self._constants[key] = f"{name}:output:0"
        return self._constants[key]
