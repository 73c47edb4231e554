"""Installed versions and their conflicts, read from the packages' metadata without imports."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask, secrets_in
from tpunb.errors import ConnectError
from tpunb.machine.chips import find_chips
from tpunb.machine.detect import detect_platform
from tpunb.machine.problems import SetupProblem

_log = logger("machine")

TESTED = ((2, 18), (2, 19), (2, 20), (2, 21))
"""The releases of TensorFlow that tpunb is tested with, oldest first.

The virtual TPU uses private parts of TensorFlow, which any release may change. A patch release
counts as its minor release. pyproject.toml, the doctor and the warning when connecting follow
this table.
"""

OLDEST = TESTED[0]
_NEWEST = TESTED[-1]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


SPECIFIER = f">={_dotted(OLDEST)},<{_NEWEST[0]}.{_NEWEST[1] + 1}"
"""The tested releases as a requirement."""

RANGE = f"{_dotted(OLDEST)} to {_dotted(_NEWEST)}"
"""The tested releases in a sentence."""

OLDEST_JAX, ITS_PYTHON = (0, 7, 2), (3, 11)
"""The oldest release of JAX that a virtual TPU can use, and the oldest Python that has it."""

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_warned: set[str] = set()


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version; none if it does not start with a number."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def too_old_jax(jax: str) -> SetupProblem | None:
    """Return the problem that a release of JAX is too old for a virtual TPU, or None."""
    if release(jax) >= OLDEST_JAX:
        return None
    oldest = _dotted(OLDEST_JAX)
    what = f"A virtual TPU needs JAX {oldest} or later, and this is JAX {jax}."
    if sys.version_info >= ITS_PYTHON:
        fix = f'Run %pip install "jax>={oldest}" and restart the kernel.'
        return SetupProblem("jax", what, fix, f'pip install "jax>={oldest}"')
    fix = (
        f"JAX {oldest} needs Python {_dotted(ITS_PYTHON)} or later, and this is Python "
        f"{platform.python_version()}. Install tpunb and jax in a newer Python."
    )
    return SetupProblem("jax", what, fix)


def is_newer(version: str) -> bool:
    """Return whether a version of TensorFlow is newer than all tested versions."""
    return release(version)[:2] > _NEWEST


def newer_than_tested(version: str) -> str:
    """Return the sentence, without a full stop, that a version is newer than the tested ones."""
    return f"TensorFlow {version} is newer than the releases that tpunb is tested with, {RANGE}"


def warn_if_newer(version: str | None) -> None:
    """Warn once in a process if a version of TensorFlow is newer than all tested versions.

    In a notebook the log has the sentence instead, and `%tpu_doctor` reports it. A warning would
    become part of a cell's outputs, which nbval compares.

    Args:
        version: The version; None if unknown.
    """
    if version is None or not is_newer(version) or version in _warned:
        return
    _warned.add(version)
    text = (
        f"{newer_than_tested(version)}. A virtual TPU may fail or behave differently. If it does, "
        f'update tpunb, or install a tested release: pip install "tensorflow{SPECIFIER}"'
    )
    if _is_kernel():
        _log.info("%s", text)
    else:
        warnings.warn(text, stacklevel=3)


def _is_kernel() -> bool:
    """Return whether a notebook's cells run in this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
"""Distributions of TensorFlow with TPU support."""

LIBTPU: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (2, 20): ((0, 0, 14), (0, 0, 32)),
}
"""The oldest libtpu and the first that is too new, by release of tensorflow-tpu.

With a libtpu that is too new, the process aborts when TensorFlow is imported. This was found by
importing tensorflow-tpu 2.20.0 with 12 releases of libtpu: 0.0.17 to 0.0.31 work, 0.0.32 to
0.0.52 abort. The metadata of tensorflow-tpu allow them all. Other releases of tensorflow-tpu pin
libtpu. pytorch/xla#3786 shows such an abort for an earlier pair. Remove this table when
tensorflow-tpu 2.20 is no longer supported.
"""

# Every build of TensorFlow has this file, with a different size in each build.
_FILE = "tensorflow/python/_pywrap_tensorflow_internal.so"


def fatal_pair(versions: Mapping[str, str]) -> SetupProblem | None:
    """Return the problem of a libtpu that ends the process when TensorFlow loads it, or None.

    Args:
        versions: Installed versions, by package.
    """
    tensorflow, libtpu = versions.get("tensorflow-tpu", ""), versions.get("libtpu", "")
    bounds = LIBTPU.get(release(tensorflow)[:2])
    if bounds is None or release(libtpu) < bounds[1]:
        return None
    oldest, too_new = map(_dotted, bounds)
    return SetupProblem(
        "libtpu",
        f"tensorflow-tpu {tensorflow} cannot use libtpu {libtpu}: it ends the process when "
        "TensorFlow loads it.",
        "Install an older libtpu, then restart the kernel.",
        f'pip install "libtpu>={oldest},<{too_new}"',
    )


def overwritten_tensorflow(versions: Mapping[str, str]) -> str:
    """Return the distribution that overwrote tensorflow-tpu's files, or an empty string."""
    name = next((name for name in FOR_TPU if name in versions), None)
    if name is None or _has_its_file(name) is not False:
        return ""
    others = ("tensorflow", "tensorflow-cpu", "tf-nightly")
    return next((other for other in others if other in versions and _has_its_file(other)), "")


def unmet(name: str, versions: Mapping[str, str], extra: str = "") -> Iterator[str]:
    """Yield a package's unmet requirements of libtpu, as sentences without full stops.

    Args:
        name: The package. A package that is not installed has no unmet requirements.
        versions: Installed versions, by package.
        extra: The extra whose requirements apply.
    """
    for requirement in _required_libtpu(name, versions, extra):
        wanted = f"{name} {versions[name]} requires {requirement.name}{requirement.specifier}"
        installed = versions.get(requirement.name)
        if installed is None:
            yield f"{wanted}, which is not installed"
        elif not requirement.specifier.contains(installed, prereleases=True):
            yield f"{wanted}, but {installed} is installed"


def _required_libtpu(name: str, versions: Mapping[str, str], extra: str) -> list[Any]:
    """Return a package's requirements of libtpu, as packaging's objects."""
    if name not in versions:
        return []
    try:
        from packaging.requirements import Requirement  # if it is missing, rely on pip's check

        requires = [Requirement(text) for text in metadata.requires(name) or ()]
    except Exception:  # other packages' metadata may be malformed
        return []
    return [
        requirement
        for requirement in requires
        if requirement.name.startswith("libtpu")
        and (requirement.marker is None or requirement.marker.evaluate({"extra": extra}))
    ]


def _is_newer_than_required(
    name: str, extra: str, plugin: str, versions: Mapping[str, str]
) -> bool:
    """Return whether a plugin is newer than each release that a package's requirement names."""
    named = [
        release(each.version)
        for requirement in _required_libtpu(name, versions, extra)
        for each in requirement.specifier
        if requirement.name == plugin
    ]
    installed = release(versions.get(plugin, ""))
    return bool(named) and all(installed[: len(each)] > each for each in named)


def _has_its_file(name: str) -> bool | None:
    """Return whether the file on disk is a distribution's, by its size; None if unknown."""
    try:
        distribution = metadata.distribution(name)
        record = distribution.read_text("RECORD") or ""
        size = re.search(rf"^{re.escape(_FILE)},[^,\n]*,(\d+)", record, re.MULTILINE)
        on_disk = distribution.locate_file(_FILE).stat().st_size  # type: ignore[attr-defined]
    except Exception:  # other packages' metadata may be malformed
        return None
    return None if size is None else int(size[1]) == on_disk


TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tf-nightly-tpu")
"""Distributions that install the same files."""

_PACKAGES = (
    "tpunb", *TENSORFLOWS, "libtpu", "libtpu-nightly", "keras", "tf_keras", "jax", "jaxlib",
    "grpcio", "numpy", "ipython", "ipykernel", "ipywidgets", "anywidget",
)  # fmt: skip
# Cloud TPU's machine images install libtpu outside Python.
_SYSTEM_LIBTPU = ("/lib/libtpu.so", "/usr/lib/libtpu.so")
_NEWEST_PYTHON = (3, 13)  # the newest with a wheel of TensorFlow 2.21
_NEWEST_WITH_CPU = (3, 14)  # the newest with a wheel of the release that tpunb[cpu] installs
# Older releases reduce metrics over replicas wrongly: keras-team/keras#19340, and #21467, where
# 3.10.0 is found to work.
_OLDEST_KERAS = (3, 10)
_UNKNOWN = "unknown version"
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Software:
    """The installed software.

    Attributes:
        python: Python's version.
        versions: The versions of the relevant installed packages, by name.
        libtpu: The path of a libtpu outside Python; may be empty.
        needs: Unmet requirements of installed packages, as sentences.
        pythons: The Python versions that the installed TensorFlow supports.
        keras: The Keras that TensorFlow uses: `"keras"` or `"tf_keras"`.
        backend: Keras's backend from the environment; empty if not set.
        overwritten_by: The TensorFlow whose files replaced tensorflow-tpu's; empty if none did.
        jax_needs: The libtpu that JAX requires, as a sentence; empty if it is installed.
        newer_than_jax: Whether the installed libtpu is newer than the libtpu that JAX requires.
        imported: The version of TensorFlow that this process has imported; empty if none.
        jax: The backends that JAX has started in this process, such as `"tpu"`.
    """

    python: str
    versions: Mapping[str, str]
    libtpu: str = ""
    needs: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    keras: str = "keras"
    backend: str = ""
    overwritten_by: str = ""
    jax_needs: str = ""
    newer_than_jax: bool = False
    imported: str = ""
    jax: tuple[str, ...] = ()

    @property
    def tensorflow(self) -> str | None:
        """The version of TensorFlow, or None if none is installed."""
        return self.versions.get(_installed(self.versions))

    @property
    def stays_with_jax(self) -> bool:
        """True if JAX is installed without TensorFlow, which does not block work with JAX."""
        return self.tensorflow is None and "jax" in self.versions

    def problems(self, *, local_tpu: bool) -> Iterator[SetupProblem]:
        """Yield version conflicts and missing packages.

        Args:
            local_tpu: Whether to use this machine's TPU.
        """
        if self.jax and local_tpu and not self.stays_with_jax:
            yield SetupProblem(
                "jax",
                "This process has used JAX, which takes the TPU for itself.",
                "Restart the kernel, and use JAX and TensorFlow in separate kernels.",
                stops="tpu" in self.jax,
            )
        pair = (self.versions.get("jax"), self.versions.get("libtpu"))
        if pair == ("0.7.2", "0.0.21.1"):  # the pair on Colab in 2026
            yield SetupProblem(
                "jax",
                "JAX 0.7.2 with libtpu 0.0.21.1 ends the process when it compiles for a TPU that "
                "the machine does not have.",
                "Use tpunb.compile, whose own compiler leaves both packages unchanged.",
                "tpunb compiler install",
                stops=False,
            )
        if self.stays_with_jax and not local_tpu:
            yield from filter(None, [too_old_jax(self.versions["jax"])])
        if local_tpu:
            yield from self._of_plugin()
        if self.tensorflow is None:
            yield self._missing(local_tpu=local_tpu)
            return
        yield from filter(None, [fatal_pair(self.versions)])
        yield from self._of_several()
        if local_tpu:
            yield from self._of_tpu()
        yield from self._of_versions()
        yield from self._of_keras()
        yield from self._of_process()

    def _missing(self, *, local_tpu: bool) -> SetupProblem:
        extra = "tpu" if local_tpu else "cpu"
        if self.stays_with_jax:
            return SetupProblem(
                "tensorflow",
                "TensorFlow is not installed: %tpu_connect, %%tpu_run and %%tpu_profile need it.",
                "Stay with JAX: %%tpu_compile takes its functions and Keras models without a "
                f'connection. Or install TensorFlow: pip install "tpunb[{extra}]"',
                stops=False,
            )
        if release(self.python)[:2] > (_NEWEST_PYTHON if local_tpu else _NEWEST_WITH_CPU):
            newest = _dotted(_NEWEST_PYTHON)
            return SetupProblem(
                "Python",
                f"TensorFlow is not installed, and it may have no wheel for Python {self.python}.",
                f"Make an environment with Python {newest}, and install tpunb there.",
                f"python{newest} -m venv .venv",
            )
        return SetupProblem(
            "tensorflow",
            "TensorFlow is not installed.",
            "Install it, then restart the kernel.",
            f'pip install "tpunb[{extra}]"',
        )

    def _of_several(self) -> Iterator[SetupProblem]:
        several = {name: self.versions[name] for name in TENSORFLOWS if name in self.versions}
        if len(set(several.values())) < 2 and not self.overwritten_by:
            return
        names = ", ".join(f"{name} {version}" for name, version in several.items())
        kept = next((name for name in FOR_TPU if name in several), next(iter(several)))
        others = " ".join(name for name in several if name != kept)
        yield SetupProblem(
            "tensorflow",
            f"Several TensorFlows are installed in one place: {names}. Some files of one have "
            "replaced files of another.",
            "Keep one of them, then restart the kernel.",
            f"pip uninstall -y {others} && "
            f'pip install --force-reinstall --no-deps "{kept}=={several[kept]}"',
        )

    def _of_tpu(self) -> Iterator[SetupProblem]:
        for_tpu = next((name for name in FOR_TPU if name in self.versions), None)
        if for_tpu is None:
            has_own = bool(self.libtpu) and "tensorflow" in self.versions
            installed = " ".join(name for name in TENSORFLOWS if name in self.versions)
            also = f" unless it came with this machine, like {self.libtpu}" if has_own else ""
            yield SetupProblem(
                "tensorflow",
                f"{installed} {self.tensorflow} has no support for TPUs{also}.",
                "Install tensorflow-tpu instead, then restart the kernel.",
                f'pip uninstall -y {installed} && pip install "tpunb[tpu]"',
                stops=not has_own,
            )
        for need in self.needs:
            yield SetupProblem(
                "libtpu",
                f"{need}.",
                "Install the required libtpu, then restart the kernel.",
                f'pip install "{for_tpu}=={self.versions[for_tpu]}"' if for_tpu else "",
            )

    def _of_versions(self) -> Iterator[SetupProblem]:
        tensorflow = self.tensorflow or ""
        name = _installed(self.versions)
        if release(tensorflow) and release(tensorflow)[:2] < OLDEST:
            yield SetupProblem(
                "tensorflow",
                f"TensorFlow {tensorflow} is too old: tpunb needs {_dotted(OLDEST)}.",
                "Install a newer release, then restart the kernel.",
                f'pip install "{name}{SPECIFIER}"',
            )
        if is_newer(tensorflow):
            yield SetupProblem(
                "tensorflow",
                f"{newer_than_tested(tensorflow)}.",
                "If a virtual TPU fails, update tpunb, or install a tested release.",
                f'pip install "{name.replace("tf-nightly", "tensorflow")}{SPECIFIER}"',
                stops=False,
            )
        minor = _minor(self.python)
        if self.pythons and minor not in self.pythons:
            yield SetupProblem(
                "Python",
                f"TensorFlow {tensorflow} is made for Python {self.pythons[0]} to "
                f"{self.pythons[-1]}, but this is Python {self.python}.",
                f"Make an environment with Python {self.pythons[-1]}.",
                stops=False,
            )

    def _of_keras(self) -> Iterator[SetupProblem]:
        keras = self.versions.get(self.keras, "")
        legacy = self.keras == "tf_keras"
        if legacy and not keras:
            yield SetupProblem(
                "tf_keras",
                "TF_USE_LEGACY_KERAS chooses Keras 2, but tf_keras is not installed.",
                "Install it or unset the variable. Then restart the kernel.",
                install_tf_keras(self.tensorflow),
            )
        if not legacy and (3,) <= release(keras) < _OLDEST_KERAS:
            yield SetupProblem(
                "keras",
                f"Keras {keras} reports NaN, or a loss and an accuracy multiplied by the number of "
                "replicas, when it trains on several replicas (known error 70).",
                "Install Keras 3.10 or newer, then restart the kernel.",
                'pip install "keras>=3.10"',
                stops=False,
            )
        other = self.versions.get("tf_keras", "")
        if other and self.tensorflow and _minor(other) != _minor(self.tensorflow):
            yield SetupProblem(
                "tf_keras",
                f"tf_keras {other} is made for TensorFlow {_minor(other)}, not for "
                f"{self.tensorflow}.",
                "Install the release for this TensorFlow, then restart the kernel.",
                install_tf_keras(self.tensorflow),
                stops=legacy,
            )
        if self.backend not in ("", "tensorflow") and not legacy:
            yield SetupProblem(
                "keras",
                f"KERAS_BACKEND={self.backend} makes Keras compute without TensorFlow, and so "
                "without its TPUStrategy.",
                "Set KERAS_BACKEND to tensorflow before Keras is imported.",
                stops=False,
            )

    def _of_process(self) -> Iterator[SetupProblem]:
        known = self.tensorflow not in (None, _UNKNOWN)
        if known and self.imported and release(self.imported) != release(self.tensorflow or ""):
            yield SetupProblem(
                "tensorflow",
                f"This process has imported TensorFlow {self.imported}, but {self.tensorflow} "
                "is installed.",
                "Restart the kernel.",
            )

    def _of_plugin(self) -> Iterator[SetupProblem]:
        """Yield the problem of a libtpu that is not the one that JAX requires."""
        if not self.jax_needs:
            return
        consequence = "JAX may fail on a TPU."
        if self.newer_than_jax:
            consequence = (
                "libtpu is newer than JAX, which may end the process with "
                '"Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24".'
            )
        fix, command = "Install the libtpu of this JAX, then restart the kernel.", ""
        if not self.stays_with_jax:
            fix = "Use JAX and TensorFlow in separate environments: each requires its own libtpu."
        else:
            command = f'pip install "jax[tpu]=={self.versions["jax"]}"'
        yield SetupProblem("jax", f"{self.jax_needs}: {consequence}", fix, command, stops=False)


def tensorflow_version() -> str | None:
    """Return the version of TensorFlow without importing it, or None if unknown."""
    return next(filter(None, map(_version, TENSORFLOWS)), None)


def chooses_keras_2(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment makes tf_keras the `tf.keras`, as TensorFlow reads it."""
    return environment.get(_LEGACY_KERAS, "") in ("1", "true", "True")


def find_software(environment: Mapping[str, str]) -> Software:
    """Find installed versions without importing the packages.

    Args:
        environment: Environment variables.
    """
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    # A TensorFlow built from source, or part of an image, may have no metadata.
    if not _installed(versions) and _is_there("tensorflow"):
        versions["tensorflow"] = _UNKNOWN
    return Software(
        python=platform.python_version(),
        versions=versions,
        libtpu=next((path for path in _SYSTEM_LIBTPU if Path(path).exists()), ""),
        needs=tuple(need for name in FOR_TPU for need in unmet(name, versions)),
        pythons=_pythons(versions),
        keras="tf_keras" if chooses_keras_2(environment) else "keras",
        backend=mask(environment.get("KERAS_BACKEND", ""), secrets_in(environment)).strip().lower(),
        overwritten_by=overwritten_tensorflow(versions),
        jax_needs=next(unmet("jax", versions, extra="tpu"), "") if "libtpu" in versions else "",
        newer_than_jax=_is_newer_than_required("jax", "tpu", "libtpu", versions),
        imported=_imported("tensorflow"),
        # TensorFlow may import JAX without starting JAX's devices.
        jax=tuple(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ()),
    )


def _installed(versions: Mapping[str, str]) -> str:
    """Return the installed distribution of TensorFlow, or an empty string."""
    return next((name for name in TENSORFLOWS if name in versions), "")


def _pythons(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Python versions that the installed TensorFlow declares."""
    try:
        classifiers = metadata.metadata(_installed(versions)).get_all("Classifier") or []
    except Exception:  # none is installed, or its metadata is malformed
        return ()
    pythons = {match[1] for text in classifiers if (match := _PYTHON.search(str(text)))}
    return tuple(sorted(pythons, key=release))


def _version(name: str) -> str | None:
    try:
        version: str | None = metadata.version(name)
    except Exception:  # not installed, or its metadata is unreadable
        return None
    return (
        version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,60}", version) else None
    )


def _imported(module: str) -> str:
    """Return the version of a module that this process has imported, or an empty string."""
    version = getattr(sys.modules.get(module), "__version__", "")
    return version if isinstance(version, str) else ""


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_tf_keras(tensorflow: str | None) -> str:
    """Return the command that installs Keras 2 for a version of TensorFlow.

    It leaves out the dependencies, which would put `tensorflow` over `tensorflow-cpu`'s files.
    """
    wanted = f"=={minor}.*" if (minor := _minor(tensorflow)) else ""
    return f'pip install --no-deps "tf_keras{wanted}"'


def choose_keras_2(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make tf_keras the `tf.keras` of a process that has not imported TensorFlow yet.

    TensorFlow reads an environment variable when it is imported, and does not change afterwards.

    Args:
        environment: The process's environment variables, which this function changes.
    """
    environment[_LEGACY_KERAS] = "1"


def require_keras_2_here() -> str:
    """Check that Keras 2 is the `tf.keras` of this process, or can become it.

    Returns:
        A sentence for the user.

    Raises:
        ConnectError: Keras 2 is not installed, or TensorFlow was imported with Keras 3.
    """
    sentence = require_keras_2()
    if "tensorflow" in sys.modules and not chooses_keras_2():
        raise ConnectError(
            "TensorFlow was imported with Keras 3 and cannot change to Keras 2.",
            fix="Restart the kernel, and choose Keras 2 before anything imports TensorFlow.",
        )
    return sentence


def require_keras_2() -> str:
    """Check that Keras 2 is installed, in the release of this environment's TensorFlow.

    Returns:
        A sentence with its version.

    Raises:
        ConnectError: Keras 2 is not installed, or is made for another TensorFlow.
    """
    tensorflow, keras_2 = tensorflow_version(), _version("tf_keras")
    fix = f"{install_tf_keras(tensorflow)}, then restart the kernel."
    if keras_2 is None:
        raise ConnectError("Keras 2 is the package tf_keras, which is not installed.", fix=fix)
    if tensorflow is not None and _minor(keras_2) != _minor(tensorflow):
        raise ConnectError(f"tf_keras {keras_2} is not made for TensorFlow {tensorflow}.", fix=fix)
    return f"tf.keras is Keras 2 (tf_keras {keras_2})."


def _minor(version: str | None) -> str:
    return _dotted(release(version or "")[:2])


def prepare_tpu_library(
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Keep tensorflow-tpu from loading libtpu on a machine without a TPU.

    There libtpu waits minutes for a metadata server, logs errors to standard error, and gives
    TensorFlow a device TPU_SYSTEM without a TPU. A `TPU_LOAD_LIBRARY` that the user has set
    does not change. jax-ml/jax#11668 (open) reports the wait, with `TPU_SKIP_MDS_QUERY=1` as the
    workaround. pytorch/xla#3786 recommends `TPU_LOAD_LIBRARY=0`.

    Args:
        environment: Environment variables, which this function completes. By default, the
            process's own.

    Raises:
        ConnectError: TensorFlow would load a libtpu that ends the process.
    """
    environment = os.environ if environment is None else environment
    versions = find_software(environment).versions
    if not any(name in versions for name in FOR_TPU):
        return
    chips, platform = find_chips(), detect_platform(environment)
    if not (chips.there or platform.tpu_sign):
        missing = {"TPU_LOAD_LIBRARY": "0"}
        if not platform.on_cloud:
            missing["TPU_SKIP_MDS_QUERY"] = "1"
        for name, value in missing.items():
            if not environment.get(name, "").strip():
                environment[name] = value
                _log.debug("no TPU here: %s=%s", name, value)
    problem = fatal_pair(versions)
    if problem is not None and environment.get("TPU_LOAD_LIBRARY", "").strip() != "0":
        fix = problem.fix.removeprefix("Install an older libtpu, ")
        raise ConnectError(problem.message, fix=f"Run %{problem.command}, {fix}")
