"""A check whether a function would compile and run well on a TPU, without running it."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.plain_text import plain, shortened
from tpunb._util.tables import PLAIN, Markup, escaped, lines, table
from tpunb._util.units import grouped
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import Choose, Problem, SourceLine, innermost
from tpunb.errors.explain import explain
from tpunb.machine.keras_internals import chooser
from tpunb.tensorflow.checks.dataset_sizes import DatasetBatch, with_batches
from tpunb.tensorflow.checks.empty_shares import EMPTY, empty_share
from tpunb.tensorflow.checks.keras_models import model_step
from tpunb.tensorflow.checks.replica_comparison import ReplicaComparison
from tpunb.tensorflow.checks.untouched import remember
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction, traced_function_of
from tpunb.tensorflow.virtual.strategy import VirtualTPU
from tpunb.tensorflow.virtual.strict.advice import advice
from tpunb.tensorflow.virtual.strict.collective_branches import RULE as COLLECTIVE_BRANCH
from tpunb.tensorflow.virtual.strict.examination import Examination, examine, observing
from tpunb.tensorflow.virtual.strict.traced_anew import traced_anew
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import accelerator
from tpunb.virtual.strictness import REFUSED

_CODE = "48"  # the code in the catalogue


def no_embedding_tables(error: Exception, place: tuple[str, int] | None) -> Problem:
    """Return the finding that a function needs embedding tables of a TPU.

    TensorFlow asks for their kernels already while it traces.

    Args:
        error: The error that tracing raised.
        place: The file and the line of the function.

    Raises:
        Exception: `error` itself, if it has another cause.
    """
    known = explain(error)
    if known is None or known.code != _CODE:
        raise error
    file, line = place or ("", None)
    return Problem("unsupported-op", known.cause, known.fix, line, file, known.code)


_UNDIVIDED = "undivided-loss"
_NOT_COMPARED = "Not checked: whether the loss is divided by the number of replicas (`--compare`)."
_WIDTH = 92
_MANY_TRACES = 5
_MAX_PROBLEMS = 30  # of either kind
_MAX_CAUSE = 2000


class CheckError(TpunbError, ValueError):
    """A function or an argument that cannot be checked, or that a TPU refuses.

    Attributes:
        code: The rule that refuses the function; None if it cannot be checked.
    """

    code: str | None = None


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The findings of a check, displayed in notebooks and terminals.

    Attributes:
        errors: The code that a TPU refuses, in the order of the lines.
        warnings: The code that is slow on a TPU, or behaves differently there.
        compiler: A sentence with the verdict of the TPU's own compiler, or the reason that the
            compiler was not asked. Empty if it was not meant to be asked.
        comparison: The comparison of the gradients with those on one replica; None if it was not
            asked for.
        has_gradients: Whether the function computes gradients.
        unchecked: A sentence with what was not checked.
    """

    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    compiler: str = dataclasses.field(default="", compare=False)
    comparison: ReplicaComparison | None = dataclasses.field(default=None, compare=False)
    has_gradients: bool = dataclasses.field(default=False, compare=False, repr=False)
    unchecked: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("errors", "warnings"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name), key=_order)))

    @property
    def ok(self) -> bool:
        """True if the function compiles for a TPU, and its replicas do not hang."""
        return not self.errors

    @property
    def headline(self) -> str:
        """The outcome in one line."""
        counts = [
            f"{len(problems)} {name}{'s' if len(problems) > 1 else ''}"
            for problems, name in ((self.errors, "error"), (self.warnings, "warning"))
            if problems
        ]
        hangs = not self.ok and all(problem.code == COLLECTIVE_BRANCH for problem in self.errors)
        refused = "Hangs on a TPU" if hangs else "Does not compile for a TPU"
        outcome = "Compiles for a TPU" if self.ok else refused
        return f"{outcome}: {', '.join(counts)}." if counts else f"{outcome}."

    def not_compared(self) -> CheckReport:
        """Return the report with a note if the scale of the loss was left unchecked."""
        if not (self.ok and self.has_gradients):
            return self
        return dataclasses.replace(self, unchecked=_NOT_COMPARED)

    def compared(self, comparison: ReplicaComparison, choose: Choose = innermost) -> CheckReport:
        """Return the report completed by a comparison with one replica.

        Args:
            comparison: The comparison of a cell's step.
            choose: Chooses the line of the loss that is shown.
        """
        warnings = self.warnings
        if comparison.problem:
            found = Problem(_UNDIVIDED, comparison.problem, comparison.fix)
            warnings = (*warnings, found.at(comparison.places).shown(choose))
        return dataclasses.replace(self, warnings=warnings, comparison=comparison)

    def raise_if_refused(self) -> None:
        """Raise an error if a TPU refuses the function; for scripts and tests.

        Raises:
            CheckError: A TPU refuses the function. Its `code` is the rule of the first error.
        """
        if not self.ok:
            first = self.errors[0]
            error = CheckError(f"{self.headline} The first: {first.reason}", fix=first.fix)
            error.code = first.code
            raise error

    def __str__(self) -> str:
        return plain("\n".join([self.headline, *map(_paragraph, _rows(self)), *self._notes]))

    @property
    def _notes(self) -> list[str]:
        """The sentences below the findings."""
        comparison = self.comparison
        compared = comparison.headline if comparison and not comparison.problem else ""
        return [text for text in (self.compiler, compared, self.unchecked) if text]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("CheckReport(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        rows = [
            (_unbroken(place), _unbroken(kind), lines([cause, fix]))
            for place, kind, cause, fix in _rows(self)
        ]
        findings = table(rows, style=PLAIN) if rows else ""
        notes = "".join(f"<p>{escaped(text)}</p>" for text in self._notes)
        return f"<p><b>{escaped(self.headline)}</b></p>{findings}{notes}"


def examined(
    fn: Callable[..., Any], args: Sequence[Any], strategy: Any
) -> tuple[CheckReport, list[Examination]]:
    """Check a function by the rules, and return the examinations that the report is made of.

    Args:
        fn: The function or model, as for `tpunb.check`.
        args: Its arguments.
        strategy: A virtual TPU's strategy; None for a function that needs none.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
        Exception: The function raised this error when it was traced.
    """
    choose, arguments = chooser(fn), args
    args = with_batches(args)
    largest: Sequence[Any] = at_largest(args)
    # Without a strategy, a batch is shared by the cores of the TPU type that the compiler compiles
    # for.
    replicas = None if strategy is not None else accelerator(DEFAULT_TPU).num_devices
    if step := model_step(fn, args, strategy, CheckError, "tpunb.check", replicas):
        fn, strategy = step.replica_function, step.strategy
        args, largest = parts_of_batch(step.data), parts_of_batch(step.largest)
    if strategy is not None:
        refuse_other_strategies(strategy)
    try:
        examinations = [examine(traced) for traced in traced_functions(fn, args, largest, strategy)]
    except tf.errors.NotFoundError as error:
        # TensorFlow asks for some kernels while it traces.
        return CheckReport((no_embedding_tables(error, choose(())),)), []
    more = _traces_of(fn, args) + _empty_shares(arguments, strategy)
    return report(examinations, more, choose), examinations


def _empty_shares(args: Sequence[Any], strategy: Any) -> list[Problem]:
    """Return a problem for each dataset whose batches leave replicas without examples."""
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    texts = [
        empty_share(argument, replicas)
        for argument in args
        if isinstance(argument, tf.data.Dataset)
    ]
    parts = [text.partition(" Use ") for text in texts if text]
    return [Problem(EMPTY, cause, f"Use {fix}") for cause, _, fix in parts]


def refuse_other_strategies(strategy: Any) -> None:
    """Refuse strategies whose replica functions cannot be examined.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
    """
    if not isinstance(strategy, VirtualTPU):
        raise CheckError(
            f"A {type(strategy).__name__} cannot be checked with.",
            fix="Check on a virtual TPU: tpunb.connect(simulate='v5e-8').strategy.",
        )


def report(
    examinations: Iterable[Examination],
    more: Sequence[Problem] = (),
    line_of: Callable[[Sequence[SourceLine]], tuple[str, int] | None] | None = None,
) -> CheckReport:
    """Return a report of the findings in traced functions.

    Args:
        examinations: The examinations of the functions.
        more: Warnings of other kinds.
        line_of: Chooses which of the places that led to a finding is shown; by default the
            innermost in the user's code.
    """
    choose = line_of or innermost
    errors: dict[Problem, None] = {}
    warnings: dict[Problem, None] = dict.fromkeys(more)
    for examination in examinations:
        for problem in examination.problems:
            problems = errors if problem.code in REFUSED else warnings
            problems[problem.shown(choose)] = None
        for problem in advice(examination):
            warnings[problem.shown(choose)] = None
    return CheckReport(tuple(errors), tuple(warnings))


def _order(problem: Problem) -> tuple[bool, str, float]:
    """Return a sort key: an undivided loss, which gives another result, comes before slow code."""
    line = float("inf") if problem.line is None else problem.line
    return problem.code != _UNDIVIDED, problem.file, line


def trace_for(fn: Callable[..., Any], args: Sequence[Any], strategy: Any) -> list[TracedFunction]:
    """Trace a function, as a replica function or as a caller of `run`, without running it.

    Args:
        fn: The function.
        args: Its arguments, as `check` takes them.
        strategy: A virtual TPU's strategy; None for a function that needs none.

    Returns:
        The replica functions.

    Raises:
        Exception: The function raised this error when it was traced.
    """

    def as_replica() -> list[TracedFunction]:
        values = [_element(argument) for argument in args]
        with observing(written=False) as functions:
            _traced(lambda *inputs: strategy.run(fn, args=inputs), values)
        return [dataclasses.replace(traced, has_stand_ins=True) for traced in functions]

    def as_caller() -> list[TracedFunction]:
        inputs = [_itself_or_dataset(argument) for argument in args]
        for _ in range(2):
            with observing(written=False) as functions:
                concrete = _traced(fn, inputs)
            # If a function that is called inside makes variables, only the next trace makes none.
            if not any(traced.makes_variables for traced in functions):
                break
        return functions or ([] if strategy or takes_batch else [traced_function_of(concrete)])

    def as_function() -> list[TracedFunction]:
        return [traced_function_of(_traced(fn, [_element(argument) for argument in args]))]

    takes_batch = any(isinstance(argument, DatasetBatch) for argument in args)
    if strategy is None and not takes_batch:
        return as_caller()
    # Unpacking a dataset within a function never ends. Without a strategy, nothing distributes it.
    ways = [as_replica, as_caller] if strategy is not None else [as_function]
    if any(hasattr(argument, "__next__") for argument in args):
        ways.reverse()  # only a caller takes an iterator
    failures = []
    restore = remember(fn, args)
    for way in ways:
        try:
            if functions := way():
                return functions
        except Exception as error:
            failures.append(error)
            restore()  # a tf.function makes variables only in its first trace
    # An error that the catalogue knows does not come from trying the function in the wrong way.
    raise next((failure for failure in failures if explain(failure)), failures[0])


def traced_functions(
    fn: Callable[..., Any], args: Sequence[Any], largest: Sequence[Any], strategy: Any
) -> list[TracedFunction]:
    """Trace a function, and again with the largest sizes if its own are not fixed.

    Args:
        fn: The function.
        args: Its arguments, as `check` takes them, with a `DatasetBatch` for each dataset.
        largest: The same arguments at their largest sizes.
        strategy: A virtual TPU's strategy; None for a function that needs none.

    Returns:
        Its replica functions. Each knows its counterpart that was traced with the largest sizes.

    Raises:
        Exception: The function raised this error when it was traced.
    """
    traced = trace_for(fn, args, strategy)
    same = _types_of(map(_element, largest)) == _types_of(map(_element, args))
    if same or not any(function.open_axes for function in traced):
        return traced
    return with_fixed(traced, trace_for(fn, largest, strategy))


def with_fixed(
    traced: list[TracedFunction], fixed: Sequence[TracedFunction]
) -> list[TracedFunction]:
    """Return functions that know their counterparts traced with fixed sizes."""
    if len(fixed) != len(traced):
        return traced
    return [
        dataclasses.replace(function, fixed=counterpart)
        for function, counterpart in zip(traced, fixed, strict=True)
    ]


def at_largest(args: Sequence[Any]) -> list[Any]:
    """Return arguments in which each batch of a dataset has its largest sizes."""
    return [
        argument.fixed() if isinstance(argument, DatasetBatch) else argument for argument in args
    ]


def _types_of(args: Iterable[Any]) -> list[Any]:
    flat = tf.nest.flatten(list(args))
    return [(leaf.shape, leaf.dtype) if isinstance(leaf, tf.TensorSpec) else None for leaf in flat]


def parts_of_batch(data: Any) -> tuple[Any, ...]:
    """Return the data of a model's step as arguments of a function."""
    return data if isinstance(data, tuple) else (data,)


def _itself_or_dataset(argument: Any) -> Any:
    return argument.dataset if isinstance(argument, DatasetBatch) else argument


def _element(argument: Any) -> Any:
    """Return a replica's part of an argument; for a dataset, the part of a batch."""
    if isinstance(argument, (DatasetBatch, tf.distribute.DistributedDataset)):
        return argument.element_spec
    return argument


def _traced(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Return a function traced as for XLA, which builds loops differently from a CPU."""

    def call(*values: Any) -> Any:
        with traced_anew():
            result = fn(*values)
        return None if isinstance(result, tf.Operation) else result

    return tf.function(call).get_concrete_function(*args)


def _traces_of(fn: Any, args: Sequence[Any]) -> list[Problem]:
    """Return a problem for each sign that a function is traced more often than necessary."""
    numbers = [repr(value) for value in tf.nest.flatten(list(args)) if _is_number(value)]
    traces = getattr(fn, "experimental_get_tracing_count", int)()
    reasons = []
    if numbers:
        reason = (
            f"{len(numbers)} of the arguments are Python numbers ({', '.join(numbers[:4])}): the "
            "function is traced and compiled again for each new value."
        )
        reasons.append(reason)
    if traces >= _MANY_TRACES:
        reasons.append(f"The function has been traced {traces} times.")
    fix = "Pass tensors (`tf.constant(0.1)`) of the same shapes, and make the function once."
    return [Problem("retracing", reason, fix, entry="P6") for reason in reasons]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _rows(check_report: CheckReport) -> Iterator[tuple[str, str, str, str]]:
    for kind, problems in (("error", check_report.errors), ("warning", check_report.warnings)):
        for problem in problems[:_MAX_PROBLEMS]:
            place = "" if problem.line is None else f"line {problem.line}"
            cause = shortened(problem.cause, _MAX_CAUSE)
            yield place, f"{kind} {problem.code}", cause, problem.fix
        if len(problems) > _MAX_PROBLEMS:
            yield "", f"and {grouped(len(problems) - _MAX_PROBLEMS)} more {kind}s", "", ""


def _unbroken(text: str) -> Markup:
    return Markup(f'<span style="white-space:nowrap">{escaped(text)}</span>')


def _paragraph(row: tuple[str, str, str, str]) -> str:
    place, kind, reason, fix = row
    text = [f"{place}: {kind}" if place else kind]
    for part in (reason, fix):
        text += textwrap.wrap(part, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(text)
