# Every target makes the virtual environment that it needs. It needs no root, and changes nothing outside
# this folder. To use another Python: make PYTHON=python3.12 test

PYTHON ?= python3
# Whose notebook `make demo` executes: make FRAMEWORK=jax demo
FRAMEWORK ?= tensorflow
QUICKSTART := notebooks/00_quickstart.ipynb
EXECUTED := build/quickstart.ipynb

BIN := $(if $(filter Windows_NT,$(OS)),.venv/Scripts,.venv/bin)
OLDEST := .venv-oldest/bin
TPU_WHEEL := .venv-tpu/bin
COMPILER := .venv-compiler/bin
JAX_OLDEST := .venv-jax-oldest/bin
JAX_NEWEST := .venv-jax-newest/bin
NEXT := .venv-next/bin

# -qq shows pip's errors without its page of progress and notices.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-input
# With its dependencies, tf_keras would install tensorflow beside tensorflow-cpu.
TF_KERAS := $(PIP_INSTALL) --no-deps tf_keras
# The dependencies of TF-GNN prepare data, and its test needs none of them.
TF_GNN := $(PIP_INSTALL) --no-deps tensorflow-gnn
STAGE := printf '==> %s\n'

# The number of processes that share the tests: make WORKERS=8 test. Use one more than there are
# processors, because tests wait for pages and processes. More only compete: each imports TensorFlow.
WORKERS ?= 3
# Each process gets whole files, slow files first, in the order of tests/conftest.py.
PYTEST := -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Pyodide runs tpunb on the page "In your browser". Only npm has it as a package.
PYODIDE := 314.0.7

# The checks of architecture, notebooks, course, wheel, site and workflows. No other target repeats them.
CHECKS := tests/test_architecture.py tests/test_notebooks.py tests/test_install_cells.py tests/test_course.py tests/test_wheel.py \
	tests/test_site.py tests/test_docs.py tests/test_repository.py
UNIT_TESTS := $(PYTEST) $(CHECKS:%=--ignore=%)
# The tests whose result an older TensorFlow, or an older release pinned in tests/oldest.txt, may change.
# Left out: browsers, which do not depend on them; magics, which call functions that other tests call
# and which the notebooks run; the TPU's compiler, which is not installed; public names, limits of
# displays, calls in large cells and ordinary errors, which depend on our code only.
OLDEST_TESTS := -m "(tensorflow or oldest) and not thorough" -p no:cacheprovider \
	--ignore=tests/browser --ignore=tests/compiler --ignore-glob='tests/notebook/test_magics_*' \
	--ignore=tests/display/test_widgets_limits.py --ignore=tests/cells/test_runner_size.py \
	--ignore=tests/errors/test_explain_ordinary.py --ignore=tests/test_public_api.py
# The tests whose result the real tensorflow-tpu, or Colab's IPython and widgets, may change. The
# quickstart runs without a comparison of outputs, because it warns once without XLA for the CPU.
TPU_WHEEL_TESTS := tests/tpu_wheel tests/notebook/test_widget_messages.py \
	tests/display/test_widgets_curves.py tests/display/test_widgets_programs.py \
	tests/browser/test_classic.py
# The virtual TPU for JAX, which needs a Python with JAX and without TensorFlow.
JAX_TESTS := -m pytest -q -n 2 --dist loadfile -p no:cacheprovider -m "not thorough" tests/jax_tpu \
	--nbval-current-env notebooks/09_jax_on_a_virtual_tpu.ipynb
# The puzzles show more figures of the compiler, and the newest JAX brings another compiler.
JAX_PUZZLES := notebooks/puzzles/solutions/jax_puzzles.ipynb
# The newest JAX needs Python 3.12, which may be on the path or one of pyenv's.
JAX_PYTHON ?= $(shell for python in python3.13 python3.12 \
	"$$HOME"/.pyenv/versions/3.13.*/bin/python3 "$$HOME"/.pyenv/versions/3.12.*/bin/python3; do \
	"$$python" -c '' >/dev/null 2>&1 && echo "$$python" && break; done)
NOTEBOOK_TESTS := --nbval --nbval-current-env notebooks

export PYDEVD_DISABLE_FILE_VALIDATION := 1
# Tests start many processes, which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test test-tensorflow test-notebooks test-thorough test-oldest test-tpu-wheel \
	test-jax test-jax-oldest test-jax-newest test-next test-elsewhere \
	tensorflow-tests jax-tests check site dist test-wheels bench clean
.SILENT:
.NOTPARALLEL:

help:
	echo "make demo    execute the quickstart notebook on a virtual TPU (FRAMEWORK=jax: JAX's, without TensorFlow)"
	echo "make lab     open the notebooks in JupyterLab, on this machine only"
	echo "make setup   make the virtual environment .venv with everything; other targets add what they need"
	echo "make test    run the unit tests and notebooks, on the newest TensorFlow"
	echo "make test-thorough test-oldest test-tpu-wheel"
	echo "             run longer tests, and tests on the oldest TensorFlow and on TensorFlow for TPUs"
	echo "make test-jax test-jax-oldest test-jax-newest"
	echo "             run the tests of the virtual TPU for JAX, on the compiler's release and on both ends"
	echo "make test-next"
	echo "             run the tests of the virtual TPU on TensorFlow 2.22, which is not supported yet"
	echo "make test-elsewhere"
	echo "             run the tests that need no compiler, and the course with recorded verdicts: macOS, Windows"
	echo "make tensorflow-tests TENSORFLOW=<a clone of TensorFlow 2.21>"
	echo "             run TensorFlow's own tests of TPU strategies, on the virtual TPU"
	echo "make jax-tests JAX=<a clone of JAX 0.10.2>"
	echo "             run JAX's own tests of arrays, shardings and transformations, on the virtual TPU"
	echo "make check   check lint, format, types, notebooks and wheel"
	echo "make site    build the documentation as a site, in build/site"
	echo "make dist    build the release's wheel and sdist in dist (TAG=v0.1.0: which has to be this version)"
	echo "make test-wheels"
	echo "             install the wheel on Python 3.10 to 3.13 with each extra, and write the table in docs/compatibility.md"
	echo "make bench   run the benchmarks in a quarter of an hour (ARGS=--write: update docs/maintainers/benchmarks.md)"
	echo "make clean   remove environments, builds and caches"

# The extras of .venv, in three steps. Each step contains the step before.
DEMO := cpu,demo
LAB := cpu,lab
EVERYTHING := cpu,lab,test,browser,docs,dev

# Run a command that prints nothing for minutes, with a line every ten seconds.
define patiently
(seconds=0; while sleep 10 >/dev/null 2>&1; do seconds=$$((seconds + 10)); printf '    %s s\n' $$seconds; done) & \
	ticking=$$!; trap 'kill $$ticking 2>/dev/null' EXIT; $(1)
endef

setup: .venv/.done

# Keep an existing environment and update it. Debian's Python may come without ensurepip;
# then the system's pip installs pip into the environment.
define make_environment
$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || \
	{ echo "tpunb needs Python 3.10 to 3.14, and $(PYTHON) is" \
	"$$($(PYTHON) --version 2>&1). Choose one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
	$(PYTHON) -m venv --clear --without-pip $(1) && \
	$(PYTHON) -m pip --python $(1)/bin/python install -qq pip; }
endef

define install_extras
$(call make_environment,.venv)
$(call patiently,$(BIN)/python $(PIP_INSTALL) -c tests/newest.txt -e ".[$(1)]")
endef

.venv/.demo: pyproject.toml Makefile tests/newest.txt
	$(STAGE) ".venv: TensorFlow and the packages of the quickstart, 2 GB; a minute or two, once"
	$(call install_extras,$(DEMO))
	touch $@

.venv/.lab: pyproject.toml Makefile tests/newest.txt
	$(STAGE) ".venv: TensorFlow and JupyterLab, 2.1 GB; a minute or two, once"
	$(call install_extras,$(LAB))
	touch $@ .venv/.demo

.venv/.done: pyproject.toml Makefile tests/newest.txt
	$(STAGE) ".venv: TensorFlow, JupyterLab and tools, 2.7 GB; some minutes, once"
	$(call install_extras,$(EVERYTHING))
	$(BIN)/python $(TF_KERAS)
	touch $@ .venv/.lab .venv/.demo

.venv-oldest/.done: pyproject.toml Makefile tests/oldest.txt
	$(STAGE) ".venv-oldest: the oldest supported TensorFlow; some minutes, once"
	$(call make_environment,.venv-oldest)
	$(OLDEST)/python $(PIP_INSTALL) -c tests/oldest.txt -e ".[cpu,test]"
	$(OLDEST)/python $(TF_KERAS) -c tests/oldest.txt
	touch $@

.venv-tpu/.done: pyproject.toml Makefile tests/colab.txt
	$(STAGE) ".venv-tpu: TensorFlow for TPUs, and the packages of Colab; some minutes, once"
	$(call make_environment,.venv-tpu)
	$(TPU_WHEEL)/python $(PIP_INSTALL) -c tests/colab.txt -e ".[tpu,test]" notebook playwright
	touch $@

# The TPU's own compiler, 280 MB, which only tests and benchmarks need. Without wheels for this machine,
# the environment stays empty. It is separate for two reasons: Keras imports JAX wherever it finds it,
# which takes a tenth of a process's start, and JAX's releases do not work with the oldest TensorFlow.
.venv-compiler/.done: pyproject.toml Makefile tests/compiler.txt
	$(STAGE) ".venv-compiler: the TPU's own compiler"
	$(call make_environment,.venv-compiler)
	$(COMPILER)/python -c 'import sys; sys.exit(sys.version_info >= (3, 11))' && extras=test || extras=jax,test; \
	$(call patiently,$(COMPILER)/python $(PIP_INSTALL) -c tests/compiler.txt -e ".[$$extras]" keras)
	touch $@

.venv-jax-oldest/.done: pyproject.toml Makefile tests/jax_oldest.txt
	$(STAGE) ".venv-jax-oldest: the oldest supported JAX"
	$(call make_environment,.venv-jax-oldest)
	$(JAX_OLDEST)/python $(PIP_INSTALL) -c tests/jax_oldest.txt -e ".[test]" jax keras
	touch $@

.venv-jax-newest/.done: PYTHON := $(JAX_PYTHON)
.venv-jax-newest/.done: pyproject.toml Makefile tests/compiler.txt
	$(STAGE) ".venv-jax-newest: the newest supported JAX"
	test -n "$(PYTHON)" || { echo "The newest JAX needs Python 3.12 or later: make JAX_PYTHON=…" >&2; exit 1; }
	$(call make_environment,.venv-jax-newest)
	$(JAX_NEWEST)/python $(PIP_INSTALL) -c tests/compiler.txt -e ".[compiler,test]" keras
	touch $@

# The next release of TensorFlow, a prerelease until it is out. Its own bounds would refuse it.
.venv-next/.done: pyproject.toml Makefile
	$(STAGE) ".venv-next: the next release of TensorFlow; some minutes, once"
	$(call make_environment,.venv-next)
	$(NEXT)/python $(PIP_INSTALL) -e ".[test]" "keras>=3.10" "tensorflow-cpu>=2.22.0rc0,<2.23"
	touch $@

# TF-GNN comes last, because pip reports its missing dependencies as errors.
.venv/.gnn: .venv/.done
	$(STAGE) ".venv: TF-GNN"
	$(BIN)/python $(PIP_INSTALL) ml_collections
	$(BIN)/python $(TF_GNN)
	touch $@

demo: export TF_ENABLE_ONEDNN_OPTS := 0
demo: $(if $(filter jax,$(FRAMEWORK)),.venv-compiler/.done,.venv/.demo)
	$(STAGE) "executing the quickstart on a virtual TPU"
	rm -f $(EXECUTED)
	$(if $(filter jax,$(FRAMEWORK)),$(COMPILER),$(BIN))/tpunb demo --framework $(FRAMEWORK) -o $(EXECUTED)
	echo "JupyterLab, with all notebooks: make lab"

lab: .venv/.lab
	$(STAGE) "JupyterLab on 127.0.0.1; stop it with Ctrl-C"
	$(BIN)/jupyter lab --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/$(QUICKSTART) \
		$$(test "$$(id -u)" -ne 0 || echo --allow-root)

test: test-jax test-tensorflow

test-tensorflow test-notebooks test-thorough test-oldest test-tpu-wheel test-next test-elsewhere: export TF_ENABLE_ONEDNN_OPTS := 0

# Empty if the compiler has no wheels for this machine.
test-tensorflow test-notebooks test-thorough test-jax test-jax-oldest bench: export TPUNB_COMPILER_PYTHON = \
	$(shell test -d .venv-compiler/lib/*/site-packages/libtpu && echo $(CURDIR)/$(COMPILER)/python)

# TensorFlow's wing: the tests of the core that need no framework belong to `test-jax`.
test-tensorflow: .venv/.gnn .venv-compiler/.done
	$(STAGE) "unit tests and notebooks, outputs compared, newest TensorFlow"
	$(BIN)/python $(UNIT_TESTS) -m "tensorflow and not thorough" tests $(NOTEBOOK_TESTS)

# The core, in a process that fails if TensorFlow is imported, and JAX's wing in a Python without it.
test-jax: .venv/.gnn .venv-compiler/.done
	$(STAGE) "unit tests without TensorFlow"
	$(BIN)/python $(UNIT_TESTS) -m "not tensorflow and not thorough"
	$(STAGE) "virtual TPU for JAX"
	$(COMPILER)/python $(JAX_TESTS) --nbval $(JAX_PUZZLES) notebooks/11_dry_run.ipynb notebooks/12_search.ipynb

test-jax-oldest: .venv-jax-oldest/.done .venv-compiler/.done
	$(STAGE) "virtual TPU for JAX, oldest JAX"
	$(JAX_OLDEST)/python $(JAX_TESTS) --nbval $(JAX_PUZZLES)

# This environment is also its own compiler, which fits the newest JAX. Its figures differ a little.
test-jax-newest: export TPUNB_COMPILER_PYTHON = $(CURDIR)/$(JAX_NEWEST)/python
test-jax-newest: .venv-jax-newest/.done
	$(STAGE) "virtual TPU for JAX, newest JAX"
	$(JAX_NEWEST)/python $(JAX_TESTS) --nbval-lax

test-notebooks: .venv/.done .venv-compiler/.done
	$(STAGE) "notebooks, outputs compared"
	$(BIN)/python $(PYTEST) $(NOTEBOOK_TESTS)

test-thorough: .venv/.gnn .venv-compiler/.done
	$(STAGE) "longer unit tests and notebooks, newest TensorFlow"
	$(BIN)/python $(UNIT_TESTS) -m thorough tests $(NOTEBOOK_TESTS)

test-oldest: export TPUNB_WITHOUT_COMPILER := 1
test-oldest: .venv-oldest/.done
	$(STAGE) "unit tests and notebooks, outputs compared, oldest TensorFlow"
	$(OLDEST)/python $(UNIT_TESTS) $(OLDEST_TESTS) tests $(NOTEBOOK_TESTS)

# The virtual TPU uses private parts of TensorFlow, which a new release may change.
test-next: export TPUNB_WITHOUT_COMPILER := 1
test-next: .venv-next/.done
	$(STAGE) "virtual TPU and quickstart, next release of TensorFlow"
	$(NEXT)/python $(PYTEST) -p no:cacheprovider -m "not thorough" tests/virtual tests/cells tests/keras \
		--nbval --nbval-current-env $(QUICKSTART)

# Systems for which the compiler has no wheels. Recorded verdicts answer in its place.
test-elsewhere: export TPUNB_WITHOUT_COMPILER := 1
test-elsewhere: .venv/.done
	$(STAGE) "unit tests, and the course with recorded verdicts"
	$(BIN)/python $(UNIT_TESTS) -m "not thorough" --ignore=tests/browser --ignore=tests/compiler tests
	$(BIN)/python $(PYTEST) tests/test_course_recordings.py

test-tpu-wheel: .venv-tpu/.done
	$(STAGE) "TensorFlow for TPUs without a TPU, with Colab's IPython and widgets"
	$(TPU_WHEEL)/python $(PYTEST) -p no:cacheprovider $(TPU_WHEEL_TESTS) \
		--nbval-lax --nbval-current-env $(QUICKSTART)

# Stop before making the environment, which takes minutes.
ifeq ($(filter tensorflow-tests,$(MAKECMDGOALS))$(TENSORFLOW),tensorflow-tests)
$(error Name a clone of TensorFlow 2.21: make tensorflow-tests TENSORFLOW=~/tensorflow)
endif

tensorflow-tests: setup
	$(STAGE) "TensorFlow's own tests, on the virtual TPU; some minutes"
	PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" \
		$(BIN)/python -m tensorflow_tests "$(TENSORFLOW)" $(ARGS)

ifeq ($(filter jax-tests,$(MAKECMDGOALS))$(JAX),jax-tests)
$(error Name a clone of JAX 0.10.2: make jax-tests JAX=~/jax)
endif

jax-tests: .venv-compiler/.done
	$(STAGE) "JAX's own tests, on the virtual TPU; some minutes"
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" \
		$(COMPILER)/python -m jax_tests "$(JAX)" $(ARGS)

check: setup build/pyodide/.done-$(PYODIDE)
	$(STAGE) "lint"
	$(BIN)/ruff check --quiet --output-format concise
	$(STAGE) "format"
	$(BIN)/ruff format --check --quiet --output-format concise
	$(STAGE) "types"
	$(BIN)/mypy --no-error-summary
	$(STAGE) "architecture, notebooks, wheel, site, links, workflows"
	$(BIN)/python -m pytest -q $(CHECKS)

build/pyodide/.done-$(PYODIDE):
	rm -rf build/pyodide && mkdir -p build/pyodide && cd build/pyodide && \
		npm pack --silent pyodide@$(PYODIDE) > /dev/null && tar xzf pyodide-$(PYODIDE).tgz && touch .done-$(PYODIDE) || \
		echo "npm has brought no Pyodide: the site runs no Python in the browser."

site: setup build/pyodide/.done-$(PYODIDE)
	$(STAGE) "documentation"
	$(BIN)/python -m sphinx -b html -q -W --keep-going -c docs -d build/doctrees . build/site
	echo "The documentation is $(CURDIR)/build/site/index.html"

dist: setup
	$(STAGE) "wheel and sdist"
	test -z "$(TAG)" || test "$(TAG)" = "v$$($(BIN)/python -c 'import tpunb; print(tpunb.__version__)')" || \
		{ echo "The tag $(TAG) is not the version in tpunb/version.py." >&2; exit 1; }
	$(BIN)/python -m pytest -q tests/test_wheel.py tests/test_docs.py tests/test_repository.py
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

# ARGS="--python 3.11 --extra cpu" tries less.
test-wheels: setup
	$(STAGE) "the wheel on each Python with each extra; an hour or two"
	rm -rf build/wheel
	$(BIN)/python -m hatchling build -t wheel -d build/wheel
	PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m wheel_matrix build/wheel/*.whl $(ARGS)

.venv/.bench: .venv/.done .venv-compiler/.done
	$(STAGE) ".venv: packages that the benchmarks compare with"
	$(BIN)/python $(PIP_INSTALL) -e ".[bench]"
	touch $@

bench: .venv/.bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .venv-oldest .venv-tpu .venv-compiler .venv-jax-oldest .venv-jax-newest .venv-next build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
