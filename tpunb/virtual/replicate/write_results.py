"""The end of a function for all replicas: what it returns, and what must have run."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.virtual.graph.function_def import Returned, reference
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.variance import Variance
from tpunb.virtual.replicate.write_updates import write_last_values


def write_results(
    builder: Builder, results: Sequence[Returned], variances: Sequence[Variance]
) -> None:
    """Writes what the function returns: once per replica what is `VARYING`."""
    for index, (result, variance) in enumerate(zip(results, variances, strict=True)):
        argument = builder.analysis.arguments.get(result.source.source)
        component = argument is not None and argument.is_component
        many = variance is Variance.VARYING or component
        for replica in builder.handles.holders(result.source) if many else (0,):
            added = builder.result.signature.output_arg.add()
            added.name = f"output_{index}_{replica}"
            added.type = result.type
            builder.result.ret[added.name] = builder.tensor(result.source, replica)


def write_effects(builder: Builder) -> None:
    """Names what must run although its result is not read.

    Reads are among it, even those that only the first core makes: once the call
    is inlined, an update after the call waits for nothing else.
    """
    targets = dict.fromkeys(builder.function.control_ret.values())
    effects = dict.fromkeys(name for target in targets for name in builder.ends(target, 0))
    # What is returned from the first core alone may have waited for the others as well.
    returned = {reference(text).source for text in builder.function.ret.values()}
    targets.update(dict.fromkeys(sorted(returned & builder.once)))
    for replica in builder.replicas[1:]:
        ends = {name for target in targets for name in builder.ends(target, replica)}
        effects.update(dict.fromkeys(_end(builder, replica, sorted(ends - effects.keys()))))
    for name, argument in sorted(builder.analysis.arguments.items()):
        if argument.copy_type is not None:
            copied = write_last_values(builder, name, argument.copy_type)
            effects.update(dict.fromkeys(copied))
    for number, name in enumerate(effects):
        builder.result.control_ret[f"effect_{number}"] = name
        builder.result.signature.control_output.append(f"effect_{number}")


def _end(builder: Builder, replica: int, ends: Sequence[str]) -> Sequence[str]:
    """One node that waits for all on a replica: what follows the call waits for each of them."""
    if len(ends) < 2:
        return ends
    name, device = f"tpunb_end/replica_{replica}", builder.cores[replica][0]
    return [builder.add("NoOp", name, device, [f"^{end}" for end in ends])]
