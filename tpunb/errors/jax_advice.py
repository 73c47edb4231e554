"""Advice with the names and the numbers of an error of JAX, instead of an entry's general words.

Each pattern has its message and its releases in `tests/errors/test_jax_advice.py`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import NamedTuple

from tpunb._util.plain_text import listed
from tpunb._util.units import counted
from tpunb.errors.base import did_you_mean
from tpunb.errors.catalogue.entry import Explanation


class _Advice(NamedTuple):
    """A cause and a fix, instead of an entry's own."""

    cause: str
    fix: str


_Adviser = Callable[[re.Match[str]], _Advice]


_KINDS: list[tuple[str, re.Pattern[str], _Adviser]] = []
"""By the code of the entry that explains it: what a message looks like, and who advises on it."""

_SPEC = r"(?:PartitionSpec|P)\((?:[^()\n]|\([^()\n]{0,80}\)){0,120}\)"


def with_advice(entry: Explanation, message: str) -> Explanation:
    """Return an entry whose cause and fix name what the message names, if that is known."""
    for code, pattern, advise in _KINDS:
        if code == entry.code and (match := pattern.search(message)):
            return dataclasses.replace(entry, **advise(match)._asdict())
    return entry


def _advice(code: str, pattern: str) -> Callable[[_Adviser], _Adviser]:
    """Let a function advise on the messages of an entry that have a pattern."""

    def registered(advise: _Adviser) -> _Adviser:
        _KINDS.append((code, re.compile(pattern), advise))
        return advise

    return registered


def _spec(text: str) -> str:
    """Return a spec as users write it: `P('batch')`, and not `PartitionSpec('batch',)`."""
    return re.sub(r",\s*\)$", ")", text.replace("PartitionSpec(", "P("))


def _names(text: str) -> list[str]:
    """Return the names in the text of a tuple or a set."""
    return re.findall(r"'([^']{1,60})'", text)


_COMBINE = (
    "Combine the parts inside the function: jax.lax.psum(x, {axis}) for the sum, "
    "jax.lax.pmean(x, {axis}) for the mean. Or keep all of them, with {axis} in out_specs. "
    "all_gather does not count as combining: JAX treats its result as different. Keep check_vma "
    "on. Without it, JAX takes the result of one device, and a missing psum stays unseen."
)


@_advice(
    "94",
    rf"(?P<where>out_specs\S{{0,60}}) is (?P<spec>{_SPEC}) which implies that the "
    r"corresponding output value is (?:only varying|replicated) across mesh axes "
    r"\{[\w,]{0,200}\}[^\n]{0,20} not \{(?P<axis>[\w,]{1,200})\}",
)
@_advice(
    "94",
    rf"(?P<where>out_specs\S{{0,60}}) is (?P<spec>{_SPEC}) which implies that the "
    r"corresponding output value is replicated across mesh axis '(?P<axis>\w{1,60})'",
)
def _may_differ(match: re.Match[str]) -> _Advice:
    axes = [f'"{axis}"' for axis in match["axis"].split(",")]
    axis = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
    return _Advice(
        f"{match['where']} is {_spec(match['spec'])}, which promises the same result on all "
        f"devices along {listed(axes)}. JAX finds that it may differ there: it is computed from "
        "parts that differ, and not combined.",
        _COMBINE.format(axis=axis),
    )


@_advice(
    "94",
    r"(?P<kind>carry|branches)[\s\S]{1,1500}?\{(?:V:)?(?P<axes>\w[\w,]{0,100})\}"
    r"[\s\S]{0,300}?manual ax(?:is types|es) do not match",
)
def _changes_in_loop(match: re.Match[str]) -> _Advice:
    axes = str(tuple(match["axes"].split(","))).replace("'", '"')
    if match["kind"] == "carry":
        cause = "In jax.shard_map, the loop begins with a value that is the same on all devices, "
        cause += "and each turn makes a value that differs from device to device."
    else:
        cause = "In jax.shard_map, one branch gives a value that is the same on all devices, and "
        cause += "the other a value that differs from device to device."
    return _Advice(
        cause,
        f'Say of the first that it may differ: jax.lax.pcast(x, {axes}, to="varying"), or in '
        f"JAX 0.7 jax.lax.pvary(x, {axes}).",
    )


@_advice(
    "88",
    r"maps array axis (?P<axis>\d+) \(of size (?P<size>\d+)\) to mesh [^\n]{1,100}? "
    r"\(of (?:total )?size (?P<parts>\d+)\)",
)
@_advice(
    "88",
    r"array axis (?P<axis>\d+) is partitioned (?P<parts>\d+) times, but the dimension size "
    r"is (?P<size>\d+)",
)
@_advice(
    "88",
    r"dimension (?P<axis>\d+) should be divisible by (?P<parts>\d+), but it is equal to "
    r"(?P<size>\d+)",
)
def _not_divisible(match: re.Match[str]) -> _Advice:
    size, parts = int(match["size"]), int(match["parts"])
    more = -(-size // parts) * parts
    sizes = f"{more - parts} or {more}" if more > parts else str(more)
    return _Advice(
        f"Axis {match['axis']} has {counted(size, 'element')}, and it is to be cut into {parts} "
        f"equal parts. {parts} does not divide {size}.",
        f"Make the size {sizes}: drop the rest of the batch (`x[:{more - parts}]`, "
        f"`drop_remainder=True`), or pad it. Or leave this axis whole, with None in the spec."
        if more > parts
        else f"Make the size {sizes} by padding, or leave this axis whole, with None in the spec.",
    )


@_advice(
    "88",
    r"all_to_all split_axis \((?P<size>\d+)\) has to be divisible by the size of the named "
    r"axis \w{1,60} \((?P<parts>\d+)\)|scatter dimension size (?P<size2>\d+) must be "
    r"divisible by shard_count (?P<parts2>\d+)",
)
def _collective_not_divisible(match: re.Match[str]) -> _Advice:
    groups = match.groupdict()
    size = groups["size"] or groups["size2"]
    parts = groups["parts"] or groups["parts2"]
    name = "all_to_all" if groups["size"] else "psum_scatter"
    return _Advice(
        f"`{name}` cuts an axis of the device's part into {parts} equal parts, and its size there "
        f"is {size}.",
        f"Inside jax.shard_map, an array has only the part of its device: print x.shape there. "
        f"Choose an axis whose size is a multiple of {parts}, or pad it.",
    )


@_advice(
    "93",
    r"at key path\s+shard_map (?P<which>in|out)_specs\s+At that key path, [^\n]{1,100} of "
    r"type \w+ of length (?P<specs>\d+), [^\n]{1,100} of length (?P<values>\d+)",
)
def _number_of_specs(match: re.Match[str]) -> _Advice:
    specs, values = int(match["specs"]), int(match["values"])
    what = "argument" if match["which"] == "in" else "result"
    return _Advice(
        f"{match['which']}_specs has {counted(specs, 'spec')}, and the function has "
        f"{counted(values, what)}.",
        f"Give {match['which']}_specs one spec for each {what}, in the same order. P() is for "
        f"{'an' if what == 'argument' else 'a'} {what} that is the same on all devices.",
    )


@_advice(
    "93",
    r"different types at key path\s+shard_map (?P<which>in|out)_specs\s+At that key path, "
    r"[^\n]{1,100} of type\s+<class '(?P<kind>tuple|list|dict)'>",
)
def _not_a_tuple(match: re.Match[str]) -> _Advice:
    which = match["which"]
    what = "arguments" if which == "in" else "results"
    return _Advice(
        f"{which}_specs and the function's {what} are built differently: one is a {match['kind']}, "
        "and the other is not.",
        f'For a single {what[:-1]}, write a single spec: {which}_specs=P("batch"). For several, '
        "write a tuple with a spec for each.",
    )


@_advice(
    "93",
    rf"(?P<where>(?P<which>in|out)_specs\S{{0,60}}) is (?P<spec>{_SPEC}) which has length "
    r"(?P<length>\d+), but [^\n]{1,300}has shape (?P<shape>\S{1,100}), which has rank "
    r"(?P<rank>\d+)",
)
def _too_long(match: re.Match[str]) -> _Advice:
    spec, rank, which = _spec(match["spec"]), int(match["rank"]), match["which"]
    what = "argument" if which == "in" else "result"
    cause = (
        f"{match['where']} is {spec}, with {counted(int(match['length']), 'entry')}, and the "
        f"{what} {match['shape']} has {counted(rank, 'axis')}."
    )
    if rank:
        return _Advice(cause, f"Leave out the entries for axes that the {what} does not have.")
    if which == "in":
        return _Advice(cause, "A single number cannot be cut: write P() for it.")
    axis = (_names(spec) or ["batch"])[0]
    return _Advice(
        cause,
        "A single number cannot be cut. Give it an axis, and each device contributes one number: "
        f'x.reshape(1). Or combine it, jax.lax.psum(x, "{axis}") or pmean, with out_specs=P().',
    )


@_advice(
    "96",
    r"Resource axis: (?P<name>\w{1,60}) of [^\n]{1,200} is (?:not found in|undefined in) "
    r"mesh: (?P<axes>[^\n]{1,200})",
)
@_advice(
    "93",
    r"an axis marked as manual \((?P<axes>[^\n]{1,200})\), but:\s+(?:in|out)_specs\S{0,60} "
    r"refers to '(?P<name>\w{1,60})'",
)
def _unknown_axis(match: re.Match[str]) -> _Advice:
    name, axes = match["name"], _names(match["axes"])
    spoken = ", ".join(f'"{axis}"' for axis in axes)
    return _Advice(
        f'A spec names "{name}", and the mesh has the {"axis" if len(axes) == 1 else "axes"} '
        f"{spoken}.",
        did_you_mean(name, axes, f"Use a name of the mesh: P({axes[0]!r})." if axes else ""),
    )


@_advice(
    "96",
    rf"(?:spec=(?P<spec>{_SPEC}), [^\n]{{0,80}})?is only valid for values of rank at least "
    r"(?P<least>\d+), but was applied to a value of rank (?P<rank>\d+)",
)
def _rank(match: re.Match[str]) -> _Advice:
    least, rank = int(match["least"]), int(match["rank"])
    spec = _spec(match["spec"]) if match["spec"] else "The spec"
    fix = "Leave out the entries for axes that the array does not have." if rank else "Write P()."
    has = counted(least, "entry"), counted(rank, "axis")
    return _Advice(f"{spec} has {has[0]}, and the array has {has[1]}.", fix)


@_advice(
    "98",
    rf"set_mesh`(?: if a PartitionSpec|\. Got (?P<spec>{_SPEC})|\(mesh\)`)"
    r"|requires a non-empty mesh|has no attribute '_is_concrete'",
)
def _without_mesh(match: re.Match[str]) -> _Advice:
    spec = _spec(match["spec"]) if match["spec"] else 'P("batch")'
    return _Advice(
        "A spec names axes of a mesh, and no mesh is set.",
        f"Say which mesh: NamedSharding(mesh, {spec}) instead of {spec}. Or set it for all cells "
        "that follow: jax.set_mesh(mesh).",
    )


@_advice("96", r"devices\.ndim == (?P<ndim>\d+) and len\(axis_names\) == (?P<names>\d+)")
def _axes_of_mesh(match: re.Match[str]) -> _Advice:
    return _Advice(
        f"The mesh gets {counted(int(match['names']), 'name')}, and its devices are an array of "
        f"{counted(int(match['ndim']), 'axis')}.",
        'Give each axis a size and a name: jax.make_mesh((4, 2), ("batch", "model")), or '
        'Mesh(devices.reshape(4, 2), ("batch", "model")). A single name is a tuple: ("batch",).',
    )


def _say(patterns: dict[str, str], cause: str, fix: str) -> None:
    """Explain messages with two texts, in which the names of a message replace `{name}`.

    Args:
        patterns: What the messages look like, by the code of the entry.
        cause: The cause.
        fix: The fix.
    """

    def advise(match: re.Match[str]) -> _Advice:
        names = {key: _spec(value) for key, value in match.groupdict("").items()}
        return _Advice(cause.format_map(names), fix.format_map(names))

    for code, pattern in patterns.items():
        _advice(code, pattern)(advise)


_SHARD_MAP = "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)"
_IMPORT = "after `from jax.sharding import PartitionSpec as P`"
_UNKNOWN_AXIS = (
    "A collective in `jax.shard_map` names {axis}, which the mesh does not have. JAX says so "
    "without a message of its own."
)
_AXIS_OF_MESH = 'Use a name from mesh.axis_names, as in jax.lax.psum(x, "batch").'
_say(
    {
        "96": r"(?m)Received invalid value: (?P<name>\w{1,60})$",
        "93": r"must be a pytree of [^\n]{1,80} instances, but:\s+\S{1,80} is "
        r"(?P<name>\w{1,60}) of type str",
    },
    '"{name}" is text, and a spec is needed.',
    f'Write P("{{name}}"), {_IMPORT}. For an array: '
    'jax.device_put(x, NamedSharding(mesh, P("{name}"))).',
)
_say(
    {"96": rf"(?P<spec>{_SPEC}) has duplicate entries for `(?P<name>\w{{1,60}})`"},
    '{spec} has "{name}" more than once. A mesh axis cuts only one axis of an array.',
    "Put None, or another mesh axis, in one of the places.",
)
_say(
    {"96": r"has no attribute 'partitions'|NamedSharding, [\w.]{1,60}, str\b"},
    "`NamedSharding` got text where it needs a spec.",
    f'Write NamedSharding(mesh, P("batch")), {_IMPORT}.',
)
_say(
    {
        "96": r"'P' object has no attribute 'size'"
        r"|NamedSharding, jax\.sharding\.PartitionSpec"
    },
    "`NamedSharding` got a spec where it needs a mesh.",
    "The mesh comes first: NamedSharding(mesh, spec).",
)
_say(
    {"142": r"Conflicting required assignment"},
    "One array must be in two memories at once: in the one that its `memory_space`, "
    "`pltpu.with_memory_space_constraint` or `pinned_host` asks for, and in that of an array which "
    "shares its place (a donated argument, `input_output_aliases`, a loop's carry).",
    "Remove one of both for this array, or copy it between them (`jnp.copy(x)`). If the program "
    "has neither, try another libtpu, and report it to https://github.com/jax-ml/jax.",
)
_say(
    {"125": r"for an operand of shape (?P<shape>\w{1,12}\[(?:\d{1,9},){0,8}0(?:,\d{1,9}){0,8}\])"},
    "An argument of the kernel is empty: {shape}. Mosaic takes arrays with elements only.",
    "Leave the kernel out if there is nothing to do (`if x.size:`, shapes are known while JAX "
    "traces), or pass an array with a single element that it does not read.",
)
_say(
    {"98": r"[Tt]he context mesh cannot be empty\. Use "},
    "`jax.shard_map` has no argument `mesh`, and no mesh is set.",
    f"Pass it: {_SHARD_MAP}. Or set it for all cells that follow: jax.set_mesh(mesh).",
)
_say(
    {"98": r"should match the mesh passed to shard_map"},
    "jax.set_mesh has set a mesh, and `jax.shard_map` gets another one.",
    "Leave out `mesh=` to use the mesh that is set, or set this one: jax.set_mesh(mesh).",
)
_say(
    {"98": r"`set_mesh` can only be used outside of"},
    "`jax.set_mesh` was called in a function that jax.jit traces.",
    "Call it outside: jax.set_mesh(mesh) in a cell of its own, or `with jax.set_mesh(mesh):` "
    "around the call.",
)
_say(
    {"101": r"unbound axis name: (?P<name>\w{1,60})"},
    'A collective names the axis "{name}", and no mapped axis has this name here: the '
    'function runs outside of `jax.shard_map`, or the mesh has no axis "{name}".',
    "Call the collective in a function that is mapped over this axis: jax.shard_map(f, "
    'mesh=mesh, in_specs=P("{name}"), out_specs=P()), with a name from mesh.axis_names. Under '
    "jax.jit alone, arrays are whole: write x.sum() without a collective. jax.vmap and "
    'jax.pmap take the name as axis_name="{name}".',
)
_say(
    {"101": r"(?m)(?:Cannot determine dtype of|Argument) '?(?P<name>\w{1,60})'?(?: of type|$)"},
    'A collective got the text "{name}" where it needs an array.',
    'The array comes first, and the name of the axis after it: jax.lax.psum(x, "{name}").',
)
_say(
    {"101": r"(?P<name>\w{1,20})\(\) missing 1 required [^\n]{0,40}'axis_name'"},
    "`{name}` needs the name of the mesh axis whose devices take part.",
    'Name it after the array: jax.lax.{name}(x, "batch"), with a name from mesh.axis_names.',
)
_say(
    {"101": r"KeyError: '(?P<name>\w{1,60})'"},
    _UNKNOWN_AXIS.format(axis='the axis "{name}"'),
    _AXIS_OF_MESH,
)
_say({"101": r"AssertionError"}, _UNKNOWN_AXIS.format(axis="an axis"), _AXIS_OF_MESH)
_say(
    {"93": r"shard_map\(\) takes from 0 to 1 positional"},
    "`jax.shard_map` takes only the function by position.",
    f"Name the others: {_SHARD_MAP}.",
)
_say(
    {"93": r"shard_map\(\) missing 1 required keyword-only argument: '(?P<name>\w{1,20})'"},
    "`jax.shard_map` was called without {name}.",
    'Say how the results form one array: out_specs=P("batch") concatenates the parts of the '
    "devices, and out_specs=P() is for a result that is the same on all of them.",
)
