"""The end of a function for all replicas: what it returns, and what must have run."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.graphs import Returned
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
        for replica in builder.replicas if many else (0,):
            added = builder.result.signature.output_arg.add()
            added.name = f"output_{index}_{replica}"
            added.type = result.type
            builder.result.ret[added.name] = builder.tensor(result.source, replica)


def write_effects(builder: Builder) -> None:
    """Names what must run although its result is not read.

    Reads are among it, even those that only the first core makes: once the call
    is inlined, an update after the call waits for nothing else.
    """
    effects = [
        name
        for target in dict.fromkeys(builder.function.control_ret.values())
        for name in sorted({n for r in builder.replicas for n in builder.ends(target, r)})
    ]
    for name, argument in sorted(builder.analysis.arguments.items()):
        if argument.copy_type is not None:
            effects += write_last_values(builder, name, argument.copy_type)
    for number, name in enumerate(effects):
        builder.result.control_ret[f"effect_{number}"] = name
        builder.result.signature.control_output.append(f"effect_{number}")
