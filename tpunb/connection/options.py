"""The options of `connect` and `%tpu_connect`: names, defaults, help and checks.

Each option is written once, as a field of `Request`. The fields define the signature and the help
of `connect`, and the parsers of the magic and of `tpunb verify`.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from tpunb._util.integers import is_whole
from tpunb._util.options import argument_of, option, options_of
from tpunb.errors import ComputationShapeError, ConnectError, nearest
from tpunb.machine.framework import FRAMEWORKS, JAX, NAMES, TENSORFLOW
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.virtual.arithmetic import ARITHMETICS, arithmetic_of
from tpunb.virtual.strictness import Strictness

_ONLY = {
    **dict.fromkeys(("dry", "judge", "speed", "recorded"), JAX),
    **dict.fromkeys(
        (
            *("computation_shape", "replicas", "spmd", "strict", "arithmetic", "at_once", "joined"),
            *("patch", "keras"),
        ),
        TENSORFLOW,
    ),
}
"""The framework of each option that only one framework has."""

JUDGE_TIMES = ("wait", "later", "off")
"""When the compiler judges JAX's programs: a call waits, the verdict is shown later, or never."""

_TIMEOUT, _DAY = 60, 24 * 60 * 60
_WIDTH = 88

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _numbers(text: str) -> tuple[int, ...]:
    """Read `1,1,1,2`, with or without brackets."""
    try:
        return tuple(int(part) for part in text.strip("[]() ").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers such as 1,1,1,2, not {text!r}"
        ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The options of a connection as the user gives them. The fields' help explains each option.

    Two requests are equal if they ask for the same connection. Options that `resolve` settles do
    not count, and neither does the timeout.

    Attributes:
        strictness: `strict` as rules.
        given: The names of the options that are not left to their defaults.

    Raises:
        ArithmeticNameError: The arithmetic does not exist.
        ComputationShapeError: The computation shape or the number of replicas is not valid.
        ConnectError: An option's value is out of range, or two options exclude each other.
    """

    tpu: str | None = option(
        None,
        "the TPU to connect to: local (Colab, Kaggle, a TPU VM), the name of a Cloud TPU, or "
        "grpc://host:port; by default the TPU found here",
        compare=False,
        flag="tpu",
        nargs="?",
    )
    _: dataclasses.KW_ONLY
    simulate: str | int | bool | None = option(
        None,
        "a virtual TPU on this machine's CPU: a type such as v5e-8 or v3-32, or a number of "
        f"cores; {DEFAULT_TPU} if the option has no value",
        compare=False,
        nargs="?",
        const=True,
        metavar="TYPE",
    )
    framework: str | None = option(
        None,
        "whose devices a virtual TPU has: tensorflow or jax; by default the framework that the "
        "notebook has imported",
        compare=False,
        choices=FRAMEWORKS,
        metavar="NAME",
    )
    dry: bool = option(
        False,
        "a dry run on a virtual TPU for JAX: the TPU's own compiler judges every program, and only "
        "small ones are computed",
    )
    judge: str = option(
        "wait",
        "when the TPU's own compiler judges the programs of a virtual TPU for JAX: a call waits "
        "for its verdict, the verdict is shown later, or it is off",
        choices=JUDGE_TIMES,
        metavar="WHEN",
    )
    speed: bool = option(
        False, "also estimate the time of these programs, which takes the compiler longer"
    )
    recorded: str | None = option(
        None,
        "a folder of recorded verdicts on these programs: it answers where the compiler is "
        "missing, and records where the compiler is",
        metavar="DIR",
    )
    computation_shape: Sequence[int] | None = option(
        None,
        "cores of one replica along the topology's axes x, y, z and core, such as 1,1,1,2, for "
        "model parallelism; by default every core is a replica",
        type=_numbers,
        metavar="X,Y,Z,CORE",
    )
    replicas: int | None = option(
        None, "the number of replicas; by default as many as fit", in_lines=False
    )
    spmd: bool = option(
        False,
        "partition tensors over a replica's logical devices by XLA's SPMD partitioner",
        in_lines=False,
    )
    strict: bool | Mapping[str, bool] = option(
        True,
        "whether a virtual TPU refuses what a TPU refuses: True for all rules, False for none, or "
        "a mapping from a rule's name to whether it applies",
        compare=False,
        flag="--lenient",
        help="allow what a TPU refuses: by these rules (a,b), or by all",
        nargs="?",
        const=False,
        type=lambda text: dict.fromkeys(text.split(","), False),
        metavar="RULE",
    )
    arithmetic: str | None = option(
        None,
        "how a virtual TPU multiplies matrices: tpu rounds float32 to bfloat16, as a TPU does; "
        "cpu keeps float32; by default the value of TPUNB_ARITHMETIC, or cpu if it is not set",
        choices=ARITHMETICS,
        metavar="ARITHMETIC",
    )
    at_once: int | None = option(
        None,
        "how many replicas of a virtual TPU run at a time; fewer need less memory; by default one "
        "for each processor",
        in_lines=False,
    )
    joined: bool | None = option(
        None,
        "whether one operation of a virtual TPU computes the values of all replicas, joined in one "
        "tensor, where all replicas do the same; this is faster, but needs the memory of all "
        "replicas at once; by default where this is a small part of the machine's memory",
        in_lines=False,
    )
    patch: bool = option(
        False,
        "make TensorFlow's own names refer to the virtual TPU until the connection is closed, for "
        "unmodified notebooks",
    )
    keras: int | None = option(
        None,
        "the version of Keras for tf.keras: 2 for the package tf_keras, for notebooks written for "
        "it; choose it before anything imports TensorFlow",
        compare=False,
        type=int,
        choices=(2,),
        metavar="2",
    )
    require_tpu: bool = option(
        False,
        "fail instead of simulating if no TPU is found; TPUNB_REQUIRE_TPU=1 does the same for a "
        "whole process",
        compare=False,
    )
    zone: str | None = option(None, "the Cloud zone of a TPU given by name", in_lines=False)
    project: str | None = option(None, "the Cloud project of a TPU given by name", in_lines=False)
    timeout: float = option(
        _TIMEOUT,
        "seconds to wait for a worker to answer",
        compare=False,
        type=float,
        metavar="S",
    )

    strictness: Strictness = dataclasses.field(init=False, repr=False)
    given: frozenset[str] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tpu, str | None):
            kind = type(self.tpu).__name__
            raise TypeError(f"tpu is the name or the address of a TPU, not a {kind}")
        given = (field for field in options_of(type(self)) if self._differs(field))
        settled = {
            "given": frozenset(field.name for field in given),
            "computation_shape": _shape_as_given(self.computation_shape),
            "strictness": Strictness.of(self.strict),
            "arithmetic": arithmetic_of(self.arithmetic),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)  # the class is frozen
        _check(self)

    @classmethod
    def of(cls, *args: Any, **values: Any) -> Request:
        """Make a request from the options that a caller passes on.

        Raises:
            TypeError: An option does not exist. The error names the nearest option.
        """
        lines = {field.name: field.metadata["line"] for field in options_of(Request)}
        unknown = next((name for name in values if name not in lines), None)
        if unknown is None:
            return cls(*args, **values)
        similar = [
            *(name for name, line in lines.items() if line.get("flag") == f"--{unknown}"),
            *(name for name in lines if unknown in name),
            *nearest(unknown, list(lines), most=1),
        ]
        hint = f"did you mean {similar[0]!r}?" if similar else f"the options are {', '.join(lines)}"
        raise TypeError(f"connect() has no option {unknown!r}: {hint}")

    def _differs(self, field: dataclasses.Field[Any]) -> bool:
        value = getattr(self, field.name)
        plain = value is None or isinstance(value, bool | int | float | str)  # others may be arrays
        return value != field.default if plain else True

    def refuse_options_of_others(self, framework: str) -> None:
        """Check that no option was given that the connection's framework does not have.

        Raises:
            ConnectError: There is such an option.
        """
        other = TENSORFLOW if framework == JAX else JAX
        for field in options_of(type(self)):
            if _ONLY.get(field.name) != other or field.name not in self.given:
                continue
            called = field.name
            if field.metadata["in_lines"]:
                called = argument_of(field)[0]
            raise ConnectError(
                f"{called} is an option of virtual TPUs for {NAMES[other]}, and this one is for "
                f"{NAMES[framework]}.",
                fix=f"Remove it, or choose the framework: --framework {other}.",
            )


def takes(
    request: Callable[_Parameters, Request],
) -> Callable[[Callable[..., _Result]], Callable[_Parameters, _Result]]:
    """Give a function the signature and the documentation of the options.

    `help` and completion read both. Type checkers read the function's type.

    Args:
        request: The class `Request`, which defines the signature.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)
        parameters = inspect.signature(request).parameters.values()
        function.__signature__ = signature.replace(parameters=list(parameters))  # type: ignore[attr-defined]
        before, returns, after = inspect.cleandoc(function.__doc__ or "").partition("Returns:")
        lines = [f"{before}Args:"]
        for field in options_of(Request):
            text = field.metadata["help"]
            row = f"{field.name}: {text[0].upper()}{text[1:]}."
            lines.append(
                textwrap.fill(row, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
            )
        function.__doc__ = "\n".join([*lines, "", f"{returns}{after}"]).rstrip()
        return function

    return decorate


def _check(request: Request) -> None:
    """Refuse values out of range, and options that exclude each other."""
    for name, choices in (("framework", (None, *FRAMEWORKS)), ("judge", JUDGE_TIMES)):
        if (value := getattr(request, name)) not in choices:
            known = ", ".join(filter(None, choices))
            raise ConnectError(
                f"There is no {name} {reprlib.repr(value)}.", fix=f"Choose among {known}."
            )
    replicas, timeout = request.replicas, request.timeout
    if replicas is not None and not (is_whole(replicas) and replicas >= 1):
        raise ComputationShapeError(
            f"The number of replicas must be positive and whole, not {reprlib.repr(replicas)}.",
            fix="Omit it to use as many replicas as fit.",
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= _DAY):
        raise ConnectError(
            f"The timeout must be a number of seconds, not {reprlib.repr(timeout)}.",
            fix=f"Choose a number above 0, up to a day. The default is {_TIMEOUT}.",
        )
    if request.keras not in (None, 2):
        raise ConnectError(
            f"The version of Keras to choose must be 2, not {reprlib.repr(request.keras)}.",
            fix="Omit it to use Keras 3.",
        )


def _shape_as_given(shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return a computation shape, whose values are checked when the mesh is known."""
    if shape is None:
        return None
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ComputationShapeError(
            f"A computation shape is four positive whole numbers, not {reprlib.repr(shape)}.",
            fix="Write it as a list, such as [1, 1, 1, 2].",
        )
    return tuple(shape)
