"""The magics, which parse, call, and return a value that displays itself."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from tpunb import framework
from tpunb.cells.settings import CompileSettings, RunSettings
from tpunb.connection.options import Request
from tpunb.display.live_progress import ConnectDisplay, show_in_passing
from tpunb.errors import CellError, NotConnectedError, TpunbError, nearest
from tpunb.machine.import_tensorflow import needing_tensorflow
from tpunb.notebook import displays, reports
from tpunb.notebook.magic_options import (
    CHECK,
    COMPILE,
    CONNECT,
    PROFILE,
    RUN,
    answering_help,
    arguments_of,
    checkpoint_settings,
    options,
)
from tpunb.notebook.session import Session
from tpunb.tpu.types import accelerator

if TYPE_CHECKING:
    from tpunb.connection.tpu_connection import TpuConnection
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.training.profile import Profile

_MOST_LINES = 64
"""The largest number of `%%tpu_run` lines whose parsed options are kept for further runs."""


@magics_class
class TpuMagics(Magics):  # type: ignore[misc]
    """`%tpu_connect`, `%%tpu_run` and the other magics of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        for methods in self.magics.values():
            for name, method in methods.items():
                methods[name] = answering_help(method)
        self.session = Session(shell.user_ns)
        self.displays = displays.Displays(lambda: self.session.open_connection)
        self._run_arguments = functools.lru_cache(_MOST_LINES)(
            functools.partial(arguments_of, self.tpu_run)
        )

    @magic_arguments()
    @options(*CONNECT)
    @line_magic
    def tpu_connect(self, line: str) -> TpuConnection:
        """Connect to a TPU, or to a virtual TPU.

        Shows the connected TPU. In TensorFlow it binds ``strategy``, ``resolver`` and
        ``topology``; in JAX, ``jax.devices()`` are the devices of the virtual TPU.
        Without arguments, it connects to the TPU of this machine, or to a virtual
        v5e-8 if the machine has none.

        Examples::

            %tpu_connect                         the TPU here, else a virtual one
            %tpu_connect --simulate v3-8         a virtual TPU v3-8
            %tpu_connect --simulate v5e-8 --framework jax
            %tpu_connect --simulate v3-8 --computation-shape 1,1,1,2
            %tpu_connect --simulate v3-8 --patch   TensorFlow's own names find it
            %tpu_connect local                   Colab, Kaggle, a TPU VM
            %tpu_connect my-tpu                  a Cloud TPU by its name
            %tpu_connect --simulate v3-32        a Pod slice of four hosts
        """
        from tpunb.connection.plan import resolve

        options = dict(vars(arguments_of(self.tpu_connect, line)))
        name = options.pop("name")
        connected = self.session.open_connection is not None
        failed = "Could not connect." if connected else "Not connected."
        try:
            plan = resolve(Request.of(**options))
            with ConnectDisplay(failed=failed) as shown:
                connection, notice = self.session.connect(plan, name, shown.say)
        except TpunbError:
            if (kept := self.session.open_connection) is not None:
                display(reports.Sentence(f"The {repr(kept).strip('<>')}, stays open."))
            raise
        if notice:
            display(reports.Sentence(notice))
        self.displays.introduce(connection, self.shell)
        return connection

    @magic_arguments("%tpu_run")
    @options(*RUN)
    @cell_magic
    def tpu_run(self, line: str, cell: str) -> Any:
        """Run the cell's body on every replica.

        The cell captures names of the notebook. Tensors and arrays become arguments,
        and each per-replica value goes to its own replica. Names that the cell assigns
        come back as per-replica values, and the last expression is shown. The cell can
        use ``replica_id``, ``num_replicas`` and ``ctx``.

        Examples::

            %%tpu_run
            x = tf.random.normal([8, 4]) + tf.cast(replica_id, tf.float32)
            total = ctx.all_reduce("sum", x)
            tf.reduce_mean(total)

            %%tpu_run -r loss=mean -g predictions --time
            loss, predictions = step(batch)

            %%tpu_run -d train_ds -n 1000 --as images,labels -p loss
            with tf.GradientTape() as tape:
                loss = compute_loss(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

            %%tpu_run -d train_ds -p loss --checkpoint run1
            loss = train_step(batch)

        An interrupt of a run of many steps keeps the completed steps. Run the same
        cell again to continue. If a loop of steps does not end within 0.8 s, it is cut
        short, and the message says how far it came. With ``--checkpoint`` it also continues
        after the kernel has died or was restarted: run the notebook again.
        """
        from tpunb.cells.reading.source import cell_filename

        self.session.require_framework()
        args = self._run_arguments(line)
        # Tracebacks name the cell as IPython names other cells, `Cell In[4]`. IPython knows its own
        # cells only by this table. Versions before 7.27 have no table.
        filenames = getattr(getattr(self.shell, "compile", None), "_filename_map", None)
        if isinstance(filenames, dict):
            filenames[cell_filename(cell)] = self.shell.execution_count
        settings = RunSettings(
            data=self._data(args),
            names=args.names,
            steps=args.steps,
            steps_per_loop=args.steps_per_loop,
            plot=args.plot,
            reduce=dict(args.reduce),
            gather=dict(args.gather),
            timed=args.timed,
            checkpoint=checkpoint_settings(args),
        )
        if settings.checkpoint is not None and not settings.is_stepped:
            raise UsageError("--checkpoint saves a run of many steps: add -d DATASET or -n N")
        displays.refuse_targets(args.targets, self.session.connection.replicas)
        if args.check:
            self.session.require_tensorflow("--check")
        make = self._run_steps if settings.is_stepped else self._run_once
        value, quiet = make(cell, settings, args)
        self._keep(value, args)
        if quiet or value is None:
            return None
        return displays.chosen_replicas(value, args.targets) if args.targets else value

    def _run_once(self, cell: str, settings: RunSettings, args: Any) -> tuple[Any, bool]:
        if args.check:
            _inspect(self.session.check(cell))
        run = self.session.run_once(cell, settings)
        if args.timed or args.verbose:
            display(reports.cell_report(run, timed=args.timed, verbose=args.verbose))
        elif run.cell.quiet or run.value is None:
            show_in_passing(lambda: reports.ran_line(run))
        return run.value, run.cell.quiet

    def _run_steps(self, cell: str, settings: RunSettings, args: Any) -> tuple[Any, bool]:
        inspect = _inspect if args.check else None
        run = self.session.run_steps(cell, settings, restart=args.restart, inspect=inspect)
        if args.timed or args.verbose:
            display(reports.steps_report(run))
        return run.value, run.cell.quiet

    def _keep(self, value: Any, args: Any) -> None:
        """Keep a result under the name that `-o` gives, if any."""
        if args.out is not None:
            self.shell.user_ns[args.out] = value

    def _data(self, args: Any) -> Any:
        """Return the notebook's values under the names that `-d` gives."""
        if args.names != ("batch",) and not args.data:
            raise UsageError(
                f"--as names the batches of -d: write -d DATASET --as {','.join(args.names)}"
            )
        values = []
        for name in args.data:
            first, *rest = name.split(".")
            if first not in self.shell.user_ns:
                shown = [word for word in self.shell.user_ns if not word.startswith("_")]
                near = nearest(first, shown, most=1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                raise UsageError(f"-d: there is no {first!r} in the notebook{meant}")
            value = self.shell.user_ns[first]
            for part in rest:
                value = getattr(value, part)
            values.append(value)
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    @magic_arguments("%tpu_check")
    @options(*CHECK)
    @cell_magic
    def tpu_check(self, line: str, cell: str) -> Any:
        """Check whether the cell would compile for a TPU and run well, without running it.

        Errors show code that a TPU refuses, and warnings show code that is slow on a
        TPU, at the lines of the cell. The cell is traced, as for its first run.

        Examples::

            %%tpu_check
            x = tf.random.normal([8, 128])
            tf.reshape(x, [tf.cast(x[0, 0], tf.int32), -1])

            %%tpu_check -d train_ds --as images,labels
            loss = compute_loss(labels, model(images, training=True))

            %%tpu_check -d train_ds --compare
            loss = train_step(batch)  # is the loss divided by the number of replicas?

            %%tpu_check -o report
            y = tf.nn.relu(x @ w)  # then: report.raise_if_refused()
        """
        self.session.require_tensorflow("%%tpu_check")
        args = arguments_of(self.tpu_check, line)
        report = self.session.check(cell, self._data(args), args.names, compare=args.compare)
        self._keep(report, args)
        return report

    @magic_arguments("%tpu_compile")
    @options(*COMPILE)
    @cell_magic
    def tpu_compile(self, line: str, cell: str) -> Any:
        """Compile the cell with the TPU's own compiler, without running it; needs no TPU.

        Shows whether the cell compiles, how much of a core's memory it takes, and at
        which lines. With ``--speed`` it also shows how long a call takes, and for several
        types which TPU the cell needs. Names are captured as by ``%%tpu_run``. The program
        is also the connection's ``program``.

        Examples::

            %%tpu_compile
            y = tf.nn.relu(x @ w)

            %%tpu_compile --for v2-8,v3-8,v5e-8 --speed -d train --as images,labels
            with tf.GradientTape() as tape:
                loss = compute_loss(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

            %%tpu_compile --for v5e-8 -d train --input
            loss = train_step(batch)  # does the input keep the TPU busy?

            %%tpu_compile --for v5e-8
            jax_step(params, batch)  # in JAX: this call is compiled

            %%tpu_compile --for v5e-8 --search
            jax_step(params, batch)  # in JAX: the layout that fits and is fastest
        """
        from tpunb.compiler.ask.partial_answers import CompilationStopped

        __tracebackhide__ = True
        args = arguments_of(self.tpu_compile, line)
        if args.input_speed and not args.data:
            raise UsageError("--input measures the data of a cell: name it with -d")
        data = self._data(args)
        if args.input_speed:
            # Refuse data that cannot be read again before compiling.
            framework.tensorflow().read_again(data)
        settings = CompileSettings(
            tpus=[accelerator(name).name for name in args.tpus],
            speed=args.speed or args.input_speed,
            timeout=args.timeout,
            largest_batch=args.largest_batch,
            recorded=args.recorded,
            live_arrays=args.live_arrays,
        )
        if args.search:
            found = self.session.search(cell, settings)
            self._keep(found, args)
            return found
        try:
            program = self.session.compile(cell, settings, data, args.names)
        except CompilationStopped as stopped:
            self._keep(stopped.programs, args)
            display(stopped.programs)
            raise
        self._keep(program, args)
        if args.input_speed:
            display(framework.tensorflow().input_speed(data, program))
        return program

    @magic_arguments()
    @no_var_expand
    @options(*PROFILE)
    @line_cell_magic
    def tpu_profile(self, line: str, cell: str | None = None) -> Profile:
        """Run the cell, or the statement in the line, and show where its time went.

        TensorFlow's profiler records steps (input wait, host, device, collectives) and
        operations. Trace the functions first: run the cell once without the profiler.

        Examples::

            %tpu_profile model.fit(dataset, steps_per_epoch=20)

            %%tpu_profile --keep logs -o profile
            for step in range(20):
                with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                    train_step(next(batches))
        """
        __tracebackhide__ = True
        self.session.refuse_profile_of_jax()
        with needing_tensorflow("%tpu_profile"):
            from tpunb.notebook import profiled_cell

        if cell is not None and (of_run := profiled_cell.options_of_another_magic(line)):
            with contextlib.suppress(UsageError):
                arguments_of(self.tpu_run, of_run)
                raise CellError(
                    f"%%tpu_profile has no options {of_run}: they are those of %%tpu_run.",
                    fix=f"Write %%tpu_run {of_run} as the second line, below %%tpu_profile.",
                )
        options, statement = profiled_cell.split_line(line) if cell is None else (line, "")
        args = arguments_of(self.tpu_profile, options)
        profile = profiled_cell.run_profiled(
            self.shell, "\n" + cell if cell else statement, args.keep
        )
        connection = self.session.open_of_tensorflow
        profile.notes += profiled_cell.unrecorded_cores(connection)
        profile.notes += profiled_cell.about_a_tpus_input(profile)
        profile.notes += profiled_cell.compiler_estimates(connection)
        self._keep(profile, args)
        return profile

    @magic_arguments()
    @line_magic
    def tpu_status(self, line: str) -> Any:
        """Show what is connected: replicas, uptime, memory, cells traced, the last error.

        Example::

            %tpu_status
        """
        arguments_of(self.tpu_status, line)
        return reports.status_report(self.session)

    @magic_arguments()
    @argument("type", nargs="?", help="a TPU type, such as v4-32; by default the connection's")
    @line_magic
    def tpu_topology(self, line: str) -> Any:
        """Show the topology of the connection, or of any TPU type without connecting.

        After ``%%tpu_compile``, colours show how much of a core's memory the program
        needs.

        Examples::

            %tpu_topology
            %tpu_topology v4-32
        """
        from tpunb.display.describe.topology_description import describe_accelerator, with_program

        args = arguments_of(self.tpu_topology, line)
        if args.type:
            return displays.Described(describe_accelerator(accelerator(args.type)))
        connection = self.session.open_connection
        if connection is None:
            raise NotConnectedError(
                "There is no connection whose topology could be shown.",
                fix="Name a TPU type, as in %tpu_topology v5e-8, or run %tpu_connect first.",
            )
        topology = connection.describe().topology
        assert topology is not None
        return displays.Described(with_program(topology, connection.program), connection)

    @magic_arguments()
    @argument("--last", action="store_true", help="explain the last error that is a known one")
    @argument("--json", action="store_true", help="the report as JSON")
    @line_magic
    def tpu_doctor(self, line: str) -> Any:
        """Show this machine's TPU setup, its problems, and what to do next.

        The report has versions and whether they fit, TPU devices and the processes that
        hold them, environment variables (never secrets), memory, and the TPU to which
        ``%tpu_connect`` would connect.

        Examples::

            %tpu_doctor
            %tpu_doctor --last
            %tpu_doctor --json
        """
        from tpunb.connection.doctor import doctor

        args = arguments_of(self.tpu_doctor, line)
        if args.last:
            return self.session.last_explanation or reports.Sentence("No known error so far.")
        report = doctor()
        return reports.Sentence(json.dumps(report.as_dict(), indent=2)) if args.json else report

    @magic_arguments()
    @line_magic
    def tpu_disconnect(self, line: str) -> reports.Sentence | None:
        """Shut the TPU system down and remove what connecting made.

        Example::

            %tpu_disconnect
        """
        arguments_of(self.tpu_disconnect, line)
        was_open = self.session.open_connection is not None
        self.displays.close()
        self.session.disconnect()  # if Python closed the connection, its names remain
        return None if was_open else reports.Sentence("There is no connection to close.")

    def misplaced(self, line: str) -> None:
        """Raise an error that tells where a misplaced cell magic belongs."""
        raise UsageError(
            "A cell magic is the first line of its cell, before any comment. Move this line to the "
            "top, or split the cell above it."
        )


def _inspect(report: CheckReport) -> None:
    """Show the findings of a check, and raise an error if the cell would not compile."""
    clean = not (report.errors or report.warnings)
    display(reports.Sentence(report.headline) if clean else report)
    report.raise_if_refused()
    framework.tensorflow().leave_out_of_warnings(report.warnings)
