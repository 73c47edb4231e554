"""Installed versions and their conflicts, read from the packages' metadata without imports."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from tpunb._util.secret_masking import mask, secrets_in
from tpunb.machine.framework import is_importable
from tpunb.machine.jax_releases import too_old_jax
from tpunb.machine.keras_2 import chooses_keras_2, install_tf_keras
from tpunb.machine.libtpu_releases import fatal_pair, is_newer_than_required, unmet
from tpunb.machine.setup_problem import SetupProblem
from tpunb.machine.tested_releases import (
    FOR_TPU,
    OLDEST,
    SPECIFIER,
    TENSORFLOWS,
    dotted,
    is_newer,
    minor_of,
    newer_than_tested,
    release,
    version_of,
)
from tpunb.tpu.default_tpu import DEFAULT_TPU

# Every build of TensorFlow has this file, with a different size in each build.
_FILE = "tensorflow/python/_pywrap_tensorflow_internal.so"


def overwritten_tensorflow(versions: Mapping[str, str]) -> str:
    """Return the distribution that overwrote tensorflow-tpu's files, or an empty string."""
    name = next((name for name in FOR_TPU if name in versions), None)
    if name is None or _has_its_file(name) is not False:
        return ""
    others = ("tensorflow", "tensorflow-cpu", "tf-nightly")
    return next((other for other in others if other in versions and _has_its_file(other)), "")


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
            works = "%%tpu_compile asks the TPU's compiler"
            if too_old_jax(self.versions["jax"]) is None:
                tpu = "uses this machine's TPU" if local_tpu else f"simulates a {DEFAULT_TPU}"
                works = f"%tpu_connect {tpu}, %%tpu_run runs cells on all cores, and {works}"
            return SetupProblem(
                "tensorflow",
                f"JAX works without TensorFlow: {works}.",
                "For %%tpu_profile and TensorFlow's notebooks, install TensorFlow: "
                f'pip install "tpunb[{extra}]"',
                stops=False,
            )
        if release(self.python)[:2] > (_NEWEST_PYTHON if local_tpu else _NEWEST_WITH_CPU):
            newest = dotted(_NEWEST_PYTHON)
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
                f"TensorFlow {tensorflow} is too old: tpunb needs {dotted(OLDEST)}.",
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
        minor = minor_of(self.python)
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
        if other and self.tensorflow and minor_of(other) != minor_of(self.tensorflow):
            yield SetupProblem(
                "tf_keras",
                f"tf_keras {other} is made for TensorFlow {minor_of(other)}, not for "
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
        """Yield a problem if JAX requires another release of libtpu."""
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


def find_software(environment: Mapping[str, str]) -> Software:
    """Find installed versions without importing the packages.

    Args:
        environment: Environment variables.
    """
    versions = {name: version for name in _PACKAGES if (version := version_of(name))}
    # A TensorFlow built from source, or part of an image, may have no metadata.
    if not _installed(versions) and is_importable("tensorflow"):
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
        newer_than_jax=is_newer_than_required("jax", "tpu", "libtpu", versions),
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


def _imported(module: str) -> str:
    """Return the version of a module that this process has imported, or an empty string."""
    version = getattr(sys.modules.get(module), "__version__", "")
    return version if isinstance(version, str) else ""
