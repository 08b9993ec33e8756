# `make demo` and `make test` work on a fresh machine with Python 3.11 and make: each makes .venv if there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2
export CUDA_VISIBLE_DEVICES ?=

.PHONY: demo test check format bench docs clean

$(BIN)/unisono-demo.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo]"
	touch $@

$(BIN)/unisono-dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(BIN)/unisono-demo.stamp

demo: $(BIN)/unisono-demo.stamp
	$(BIN)/python examples/digits_mirrored.py

check: $(BIN)/unisono-dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/unit -n 2 -q

test: check
	$(BIN)/python -m pytest tests -n 2 --dist loadfile -q --ignore=tests/unit

format: $(BIN)/unisono-dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BIN)/unisono-dev.stamp
	$(BIN)/python -m benchmarks

docs: $(BIN)/unisono-dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist *.egg-info
