"""Installed versions and their conflicts, from the packages' metadata; imports none of them."""

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

from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask, secrets_in
from tpunb.errors import ConnectError
from tpunb.machine.chips import find_chips
from tpunb.machine.detect import detect_platform
from tpunb.machine.problems import Problem

_log = logger("machine")

TESTED = ((2, 18), (2, 19), (2, 20), (2, 21))
"""The releases of TensorFlow that this package is tested with, oldest first.

Its virtual TPU uses private parts of TensorFlow, which any release may change; a patch release
counts as its minor release. pyproject.toml, the doctor and the warning of connecting follow this.
"""

OLDEST = TESTED[0]
_NEWEST = TESTED[-1]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


SPECIFIER = f">={_dotted(OLDEST)},<{_NEWEST[0]}.{_NEWEST[1] + 1}"
"""The tested releases as requirements name them."""

RANGE = f"{_dotted(OLDEST)} to {_dotted(_NEWEST)}"
"""The tested releases in a sentence."""

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_warned: set[str] = set()


def release(version: str) -> tuple[int, ...]:
    """The numbers at a version's start; none if it does not start with one."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_newer(version: str) -> bool:
    """Returns whether a version of TensorFlow is newer than all that are tested."""
    return release(version)[:2] > _NEWEST


def newer_than_tested(version: str) -> str:
    """Says that a version is newer than the tested ones, without a full stop."""
    return f"TensorFlow {version} is newer than those that tpunb is tested with, {RANGE}"


def warn_if_newer(version: str | None) -> None:
    """Warns, once in a process, if a version of TensorFlow is newer than all that are tested.

    Args:
        version: The version; None where it is not known.
    """
    if version is None or not is_newer(version) or version in _warned:
        return
    _warned.add(version)
    warnings.warn(
        f"{newer_than_tested(version)}: a virtual TPU may fail or behave otherwise. If it does, "
        f'update tpunb, or install a tested release: pip install "tensorflow{SPECIFIER}"',
        stacklevel=3,
    )


FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
"""Distributions of TensorFlow with TPU support."""

LIBTPU: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (2, 20): ((0, 0, 14), (0, 0, 32)),
}
"""By release of tensorflow-tpu, its oldest libtpu and the first that is too new.

With a newer one the process aborts when TensorFlow is imported: found by importing 2.20.0 with
12 releases from 0.0.17 (works) over 0.0.31 (works) and 0.0.32 (aborts) to 0.0.52. Its metadata
allow them all. Other releases pin libtpu.
"""

# In every TensorFlow, and of a different size in each.
_FILE = "tensorflow/python/_pywrap_tensorflow_internal.so"


def fatal_pair(versions: Mapping[str, str]) -> Problem | None:
    """The problem of a libtpu that ends the process when TensorFlow loads it.

    Args:
        versions: Installed versions, by package.
    """
    tensorflow, libtpu = versions.get("tensorflow-tpu", ""), versions.get("libtpu", "")
    bounds = LIBTPU.get(release(tensorflow)[:2])
    if bounds is None or release(libtpu) < bounds[1]:
        return None
    oldest, too_new = map(_dotted, bounds)
    return Problem(
        "libtpu",
        f"tensorflow-tpu {tensorflow} cannot use libtpu {libtpu}: it ends the process when "
        "TensorFlow loads it.",
        "Install an older libtpu, then restart the kernel.",
        f'pip install "libtpu>={oldest},<{too_new}"',
    )


def overwritten_tensorflow(versions: Mapping[str, str]) -> str:
    """The distribution whose files have taken the place of tensorflow-tpu's; empty if none."""
    name = next((name for name in FOR_TPU if name in versions), None)
    if name is None or _has_its_file(name) is not False:
        return ""
    others = ("tensorflow", "tensorflow-cpu", "tf-nightly")
    return next((other for other in others if other in versions and _has_its_file(other)), "")


def unmet(name: str, versions: Mapping[str, str], extra: str = "") -> Iterator[str]:
    """A package's requirements of libtpu that are not met, as sentences without full stops.

    Args:
        name: The package; nothing is unmet if it is not installed.
        versions: Installed versions, by package.
        extra: The extra of its requirements.
    """
    if name not in versions:
        return
    try:
        from packaging.requirements import Requirement  # without it, rely on pip's check

        requires = [Requirement(text) for text in metadata.requires(name) or ()]
    except Exception:  # other packages' metadata may be malformed
        return
    for requirement in requires:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not (applies and requirement.name.startswith("libtpu")):
            continue
        wanted = f"{name} {versions[name]} wants {requirement.name}{requirement.specifier}"
        found = versions.get(requirement.name)
        if found is None:
            yield f"{wanted}, which is not installed"
        elif not requirement.specifier.contains(found, prereleases=True):
            yield f"{wanted}, and {found} is installed"


def _has_its_file(name: str) -> bool | None:
    """Compares a distribution's file with the one on disk, by its size; None if unknown."""
    try:
        distribution = metadata.distribution(name)
        record = distribution.read_text("RECORD") or ""
        size = re.search(rf"^{re.escape(_FILE)},[^,\n]*,(\d+)", record, re.MULTILINE)
        on_disk = distribution.locate_file(_FILE).stat().st_size  # type: ignore[attr-defined]
    except Exception:  # as above
        return None
    return None if size is None else int(size[1]) == on_disk


TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tf-nightly-tpu")
"""Distributions that install the same files."""

_PACKAGES = (
    "tpunb", *TENSORFLOWS, "libtpu", "libtpu-nightly", "keras", "tf_keras", "jax", "jaxlib",
    "grpcio", "numpy", "ipython", "ipykernel", "ipywidgets", "anywidget",
)  # fmt: skip
# Cloud TPU's machine images install libtpu outside of Python.
_SYSTEM_LIBTPU = ("/lib/libtpu.so", "/usr/lib/libtpu.so")
_NEWEST_PYTHON = (3, 13)  # with a wheel of TensorFlow 2.21
_OLDEST_KERAS = (3, 10)
_UNKNOWN = "unknown version"
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Software:
    """The installed software.

    Attributes:
        python: Python's version.
        versions: The versions of installed packages that matter, by name.
        libtpu: A libtpu outside of Python; or empty.
        needs: Unmet requirements of installed packages, as sentences.
        pythons: The Python versions that the installed TensorFlow supports.
        keras: The Keras that TensorFlow uses: `"keras"` or `"tf_keras"`.
        backend: Keras's backend, from the environment; empty if not set.
        overwritten_by: The TensorFlow whose files lie where tensorflow-tpu's should; empty if
            they are its own.
        jax_needs: The libtpu that JAX wants, as a sentence; empty if it is there.
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
    imported: str = ""
    jax: tuple[str, ...] = ()

    @property
    def tensorflow(self) -> str | None:
        """The version of TensorFlow; None if none is installed."""
        return self.versions.get(_installed(self.versions))

    @property
    def stays_with_jax(self) -> bool:
        """Return whether there is JAX and no TensorFlow: which blocks no work with JAX."""
        return self.tensorflow is None and "jax" in self.versions

    def problems(self, *, local_tpu: bool) -> Iterator[Problem]:
        """Version conflicts and missing packages.

        Args:
            local_tpu: Whether this machine's TPU is to be used.
        """
        if self.jax and local_tpu and not self.stays_with_jax:
            yield Problem(
                "jax",
                "This process has used JAX, which takes the TPU for itself.",
                "Restart the kernel, and use JAX and TensorFlow in different ones.",
                stops="tpu" in self.jax,
            )
        pair = (self.versions.get("jax"), self.versions.get("libtpu"))
        if pair == ("0.7.2", "0.0.21.1"):  # Colab's, in 2026
            yield Problem(
                "jax",
                "JAX 0.7.2 with libtpu 0.0.21.1 ends the process when it compiles for a TPU that "
                "is not there.",
                "Let tpunb.compile do it, with a compiler of its own that leaves both as they are.",
                "tpunb compiler install",
                stops=False,
            )
        if self.tensorflow is None:
            yield self._missing(local_tpu=local_tpu)
            return
        yield from filter(None, [fatal_pair(self.versions)])
        yield from self._of_several()
        if local_tpu:
            yield from self._of_tpu()
        yield from self._of_versions()
        yield from self._of_keras()
        yield from self._of_process(local_tpu=local_tpu)

    def _missing(self, *, local_tpu: bool) -> Problem:
        extra = "tpu" if local_tpu else "cpu"
        if self.stays_with_jax:
            return Problem(
                "tensorflow",
                "TensorFlow is not installed: %tpu_connect, %%tpu_run and %%tpu_profile need it.",
                "Stay with JAX: %%tpu_compile takes its functions and Keras models without a "
                f'connection. Or install it: pip install "tpunb[{extra}]"',
                stops=False,
            )
        if release(self.python)[:2] > _NEWEST_PYTHON:
            newest = _dotted(_NEWEST_PYTHON)
            return Problem(
                "Python",
                f"TensorFlow is not installed, and it may have no wheel for Python {self.python}.",
                f"Make an environment with Python {newest}, and install tpunb there.",
                f"python{newest} -m venv .venv",
            )
        return Problem(
            "tensorflow",
            "TensorFlow is not installed.",
            "Install it, then restart the kernel.",
            f'pip install "tpunb[{extra}]"',
        )

    def _of_several(self) -> Iterator[Problem]:
        several = {name: self.versions[name] for name in TENSORFLOWS if name in self.versions}
        if len(set(several.values())) < 2 and not self.overwritten_by:
            return
        names = ", ".join(f"{name} {version}" for name, version in several.items())
        kept = next((name for name in FOR_TPU if name in several), next(iter(several)))
        others = " ".join(name for name in several if name != kept)
        yield Problem(
            "tensorflow",
            f"Several TensorFlows are installed in one place: {names}. Files of one have taken "
            "the place of the other's.",
            "Keep one, then restart the kernel.",
            f"pip uninstall -y {others} && "
            f'pip install --force-reinstall --no-deps "{kept}=={several[kept]}"',
        )

    def _of_tpu(self) -> Iterator[Problem]:
        for_tpu = next((name for name in FOR_TPU if name in self.versions), None)
        if for_tpu is None:
            has_own = bool(self.libtpu) and "tensorflow" in self.versions
            installed = " ".join(name for name in TENSORFLOWS if name in self.versions)
            also = f" unless it came with this machine, as {self.libtpu} did" if has_own else ""
            yield Problem(
                "tensorflow",
                f"{installed} {self.tensorflow} has no support for TPUs{also}.",
                "Install tensorflow-tpu in its place, then restart the kernel.",
                f'pip uninstall -y {installed} && pip install "tpunb[tpu]"',
                stops=not has_own,
            )
        for need in self.needs:
            yield Problem(
                "libtpu",
                f"{need}.",
                "Install the libtpu that it wants, then restart the kernel.",
                f'pip install "{for_tpu}=={self.versions[for_tpu]}"' if for_tpu else "",
            )

    def _of_versions(self) -> Iterator[Problem]:
        tensorflow = self.tensorflow or ""
        name = _installed(self.versions)
        if release(tensorflow) and release(tensorflow)[:2] < OLDEST:
            yield Problem(
                "tensorflow",
                f"TensorFlow {tensorflow} is too old: tpunb needs {_dotted(OLDEST)}.",
                "Install a newer one, then restart the kernel.",
                f'pip install "{name}{SPECIFIER}"',
            )
        if is_newer(tensorflow):
            yield Problem(
                "tensorflow",
                f"{newer_than_tested(tensorflow)}.",
                "If a virtual TPU fails, update tpunb, or install a tested release.",
                f'pip install "{name.replace("tf-nightly", "tensorflow")}{SPECIFIER}"',
                stops=False,
            )
        minor = _minor(self.python)
        if self.pythons and minor not in self.pythons:
            yield Problem(
                "Python",
                f"TensorFlow {tensorflow} is made for Python {self.pythons[0]} to "
                f"{self.pythons[-1]}, and this is {self.python}.",
                f"Make an environment with Python {self.pythons[-1]}.",
                stops=False,
            )

    def _of_keras(self) -> Iterator[Problem]:
        keras = self.versions.get(self.keras, "")
        legacy = self.keras == "tf_keras"
        if legacy and not keras:
            yield Problem(
                "tf_keras",
                "TF_USE_LEGACY_KERAS chooses Keras 2, and tf_keras is not installed.",
                "Install it, or unset the variable; then restart the kernel.",
                install_tf_keras(self.tensorflow),
            )
        if not legacy and (3,) <= release(keras) < _OLDEST_KERAS:
            yield Problem(
                "keras",
                f"Keras {keras} reports NaN, or a loss and an accuracy too large by the number of "
                "replicas, when it trains on several (known error 70).",
                "Install Keras 3.10 or newer, then restart the kernel.",
                'pip install "keras>=3.10"',
                stops=False,
            )
        other = self.versions.get("tf_keras", "")
        if other and self.tensorflow and _minor(other) != _minor(self.tensorflow):
            yield Problem(
                "tf_keras",
                f"tf_keras {other} is made for TensorFlow {_minor(other)}, not for "
                f"{self.tensorflow}.",
                "Install the one for this TensorFlow, then restart the kernel.",
                install_tf_keras(self.tensorflow),
                stops=legacy,
            )
        if self.backend not in ("", "tensorflow") and not legacy:
            yield Problem(
                "keras",
                f"KERAS_BACKEND={self.backend} makes Keras compute without TensorFlow, and so "
                "without its TPUStrategy.",
                "Set KERAS_BACKEND to tensorflow before Keras is imported.",
                stops=False,
            )

    def _of_process(self, *, local_tpu: bool) -> Iterator[Problem]:
        known = self.tensorflow not in (None, _UNKNOWN)
        if known and self.imported and release(self.imported) != release(self.tensorflow or ""):
            yield Problem(
                "tensorflow",
                f"This process has imported TensorFlow {self.imported}, and {self.tensorflow} "
                "is installed.",
                "Restart the kernel.",
            )
        if self.jax_needs and local_tpu:
            yield Problem(
                "jax",
                f"{self.jax_needs}: JAX may fail on a TPU.",
                "Use JAX and TensorFlow in environments of their own: each wants its own libtpu.",
                stops=False,
            )


def tensorflow_version() -> str | None:
    """The version of TensorFlow, without importing it; None if unknown."""
    return next(filter(None, map(_version, TENSORFLOWS)), None)


def chooses_keras_2(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the environment makes tf_keras the `tf.keras`, as TensorFlow reads it."""
    return environment.get(_LEGACY_KERAS, "") in ("1", "true", "True")


def find_software(environment: Mapping[str, str]) -> Software:
    """Finds installed versions without importing the packages.

    Args:
        environment: Environment variables.
    """
    versions = {name: found for name in _PACKAGES if (found := _version(name))}
    # Built from source or part of an image: installed without metadata.
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
        imported=_imported("tensorflow"),
        # TensorFlow may import JAX without starting its devices.
        jax=tuple(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ()),
    )


def _installed(versions: Mapping[str, str]) -> str:
    """The distribution of TensorFlow that is installed; empty if none is."""
    return next((name for name in TENSORFLOWS if name in versions), "")


def _pythons(versions: Mapping[str, str]) -> tuple[str, ...]:
    """The Python versions that the installed TensorFlow declares."""
    try:
        classifiers = metadata.metadata(_installed(versions)).get_all("Classifier") or []
    except Exception:  # none is installed, or as above
        return ()
    found = {match[1] for text in classifiers if (match := _PYTHON.search(str(text)))}
    return tuple(sorted(found, key=release))


def _version(name: str) -> str | None:
    try:
        found: str | None = metadata.version(name)
    except Exception:  # not installed, or its metadata is unreadable
        return None
    return found if isinstance(found, str) and re.fullmatch(r"[\w.+!-]{1,60}", found) else None


def _imported(module: str) -> str:
    """Returns the version of a module that this process has imported; empty if it has not."""
    version = getattr(sys.modules.get(module), "__version__", "")
    return version if isinstance(version, str) else ""


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_tf_keras(tensorflow: str | None) -> str:
    """The command that installs Keras 2 for a version of TensorFlow.

    Without its dependencies: they would put `tensorflow` over the files of `tensorflow-cpu`.
    """
    wanted = f"=={minor}.*" if (minor := _minor(tensorflow)) else ""
    return f'pip install --no-deps "tf_keras{wanted}"'


def choose_keras_2(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes tf_keras the `tf.keras` of a process that has not imported TensorFlow yet.

    TensorFlow reads a variable of the environment when it is imported, and keeps to it.

    Args:
        environment: The process's environment variables, which are changed.
    """
    environment[_LEGACY_KERAS] = "1"


def require_keras_2_here() -> str:
    """Checks that Keras 2 is the `tf.keras` of this process, or can become it.

    Returns:
        A sentence that says so.

    Raises:
        ConnectError: It is not installed, or TensorFlow has been imported with Keras 3.
    """
    sentence = require_keras_2()
    if "tensorflow" in sys.modules and not chooses_keras_2():
        raise ConnectError(
            "TensorFlow was imported with Keras 3 before, and keeps to it.",
            fix="Restart the kernel, and choose Keras 2 before anything imports TensorFlow.",
        )
    return sentence


def require_keras_2() -> str:
    """Checks that Keras 2 is installed, in the release of this environment's TensorFlow.

    Returns:
        A sentence with its version.

    Raises:
        ConnectError: It is not installed, or made for another TensorFlow.
    """
    tensorflow, found = tensorflow_version(), _version("tf_keras")
    fix = f"{install_tf_keras(tensorflow)}, then restart the kernel."
    if found is None:
        raise ConnectError("Keras 2 is the package tf_keras, which is not installed.", fix=fix)
    if tensorflow is not None and _minor(found) != _minor(tensorflow):
        raise ConnectError(f"tf_keras {found} is not made for TensorFlow {tensorflow}.", fix=fix)
    return f"tf.keras is Keras 2 (tf_keras {found})."


def _minor(version: str | None) -> str:
    return _dotted(release(version or "")[:2])


def prepare_tpu_library(
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Keeps a tensorflow-tpu from loading libtpu where there is no TPU.

    There libtpu waits minutes for a metadata server, complains on standard error, and gives
    TensorFlow a device TPU_SYSTEM without a TPU. Where the user has set `TPU_LOAD_LIBRARY`, it
    stays.

    Args:
        environment: Environment variables, which are completed; by default the process's own.

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
