# make demo    two minutes from nothing to a results table
# make test    the whole suite, offline; GECS_DATA_DIR=... adds the tests on real data
# make check   format, lint, types
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check test-install format clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# torch first and pinned: an unpinned one may bring gigabytes of GPU libraries along
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/gecs run --model gecs-bm25 --tasks gecs_demo --output_path results

test: $(VENV)/.dev
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# the built wheel and an editable install, each in a fresh environment, with lm-eval from its wheel and editable
test-install: $(VENV)/.dev
	$(BIN)/python -m pytest tests/install/install_test.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist results
