# `make demo` and `make test` work on a fresh machine with Python 3.11 and make: each makes .venv if there is none.
PYTHON ?= $(shell .ci/python)
VENV := .venv
# `make test VERSIONS=next` tests one combination that the package need not declare yet, in an environment of its own.
KERAS ?= keras-nightly
TENSORFLOW ?= tensorflow==2.21.*
ifeq ($(VERSIONS),next)
VENV := .venv-next
COMBINATION := $(PYTHON) $(KERAS) $(TENSORFLOW)
$(shell echo "$(COMBINATION)" | cmp -s - $(VENV)/combination || rm -rf $(VENV))
endif
BIN := $(VENV)/bin
# Python compiles what is imported, when it is first imported: that is a tenth of what is installed. Where `.ci/run` has put
# uv into .venv it installs in half the time of pip, which does it where uv does not find what pip is configured to find.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL = $(if $(wildcard $(BIN)/uv),$(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || )$(PIP_INSTALL) $(1)
comma := ,
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo install test test-gpu test-long test-clusters keras-tests pytest upstream check lint format bench docs notebooks terminal drawings report-picture dist release clean

$(BIN)/unisono-demo.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call INSTALL,-e ".[demo]")
	touch $@

$(BIN)/unisono-dev.stamp: pyproject.toml
ifeq ($(VERSIONS),next)
	.ci/next $(VENV) $(PYTHON) "$(KERAS)" "$(TENSORFLOW)"
	echo "$(COMBINATION)" >$(VENV)/combination
	touch $@
else
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call INSTALL,-e ".[dev]")
	touch $@ $(BIN)/unisono-demo.stamp
endif

# What the benchmarks compare with, too: JAX, PyTorch, Lightning, tf_keras.
$(BIN)/unisono-bench.stamp: $(BIN)/unisono-dev.stamp
	$(call INSTALL,-e ".[dev$(comma)bench]")
	touch $@

install: $(BIN)/unisono-dev.stamp

demo: $(BIN)/unisono-demo.stamp
	$(BIN)/python examples/digits_mirrored.py

check pytest test-long test-clusters keras-tests: export CUDA_VISIBLE_DEVICES =
# Tests start many programs, which would compile TensorFlow's Python code again (8 s each) where this forbids to keep it.
check pytest test-long test-clusters keras-tests: export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal -q

lint: $(BIN)/unisono-dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright

check: lint
	$(PYTEST) -m "not long" tests/unit

# Types are checked while tests run: pyright needs one processor for half a minute.
test: $(BIN)/unisono-dev.stamp
	$(MAKE) --jobs 2 $(if $(COMBINATION),upstream,lint) pytest
	@if nvidia-smi -L 2>/dev/null | grep -q GPU; then $(MAKE) test-gpu; else echo "no GPU here: tests/gpu was skipped"; fi

# Everything else compares bits on logical CPU devices, in several processes; these have the GPUs for themselves.
test-gpu: $(BIN)/unisono-dev.stamp
	UNISONO_TEST_GPUS=1 $(BIN)/python -m pytest -q tests/gpu

# Python compiles TensorFlow when it is first imported: here once, and not in all test processes at the same time.
pytest: $(BIN)/unisono-dev.stamp
	$(BIN)/python -c "import unisono.trainer" 2>/dev/null
	$(PYTEST) -m "not long" tests

# What the installed Keras and TensorFlow have changed of what is used: printed in seconds, before the tests.
upstream: $(BIN)/unisono-dev.stamp
	-$(BIN)/python -m unisono doctor --upstream 2>/dev/null

test-long: $(BIN)/unisono-dev.stamp
	$(PYTEST) -m long tests

# What needs more than the other tests: Ray, an S3 server, schedulers. What is missing is skipped, with its name.
# pip compares versions of their dependencies for more than an hour; uv does it in seconds.
$(BIN)/unisono-clusters.stamp: $(BIN)/unisono-dev.stamp
	test -x $(BIN)/uv || $(PIP_INSTALL) uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev$(comma)clusters]"
	touch $@

test-clusters: $(BIN)/unisono-clusters.stamp
	$(BIN)/python -m pytest -q -m clusters tests

# All of Keras' own tests that concern us; the suite runs those that are quick.
keras-tests: $(BIN)/unisono-dev.stamp
	$(BIN)/python -m tests.keras_own

format: $(BIN)/unisono-dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BIN)/unisono-bench.stamp
	$(BIN)/python -m benchmarks --write

docs: $(BIN)/unisono-dev.stamp
	$(BIN)/mkdocs build --strict

# A notebook of every example, executed, into docs/notebooks, and what it draws, into docs/assets; a test fails where they are old.
notebooks: $(BIN)/unisono-dev.stamp
	$(call INSTALL,-e ".[dev$(comma)tools]")
	$(BIN)/python .ci/notebooks.py

# The terminal of a run that is killed and resumed, docs/assets/resume.svg, and of its second epoch, progress.svg.
terminal: $(BIN)/unisono-dev.stamp
	$(BIN)/python .ci/terminal.py

# The drawings of the documentation and the logo, in docs/assets.
drawings: $(BIN)/unisono-dev.stamp
	$(BIN)/python .ci/drawings.py

# A photograph of a report, docs/assets/report.png. It needs Chromium: apt-get install chromium.
report-picture: $(BIN)/unisono-dev.stamp
	$(BIN)/python .ci/report_picture.py

dist: $(BIN)/unisono-dev.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# From a commit with the tag v<version>: checks version, changelog and citation, then builds what is published.
release: $(BIN)/unisono-dev.stamp
	$(BIN)/python .ci/release.py

clean:
	rm -rf $(VENV) build dist *.egg-info
