# One command for each thing a contributor does. `make` alone lists them.

PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
DEMO_STAMP := $(VENV)/.demo-stamp
DEV_STAMP := $(VENV)/.dev-stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check test-gpu bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO_STAMP) ## tune a plain training script on this machine's CPU
	cd examples && $(abspath $(BIN))/hotlap tune --budget 4 --fresh train_plain.py

# Tests that measure time have the machine to themselves; the others run two at a time.
test: $(DEV_STAMP) ## run the tests that need no GPU
	$(BIN)/python -m pytest tests --ignore=tests/gpu -m needs_quiet
	$(BIN)/python -m pytest tests --ignore=tests/gpu -m "not needs_quiet" -n 2 --dist loadscope \
	  --durations 20

check: $(DEV_STAMP) ## lint, format, types and the layer rule
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py -q

# A given GPU_PYTHON brings its own torch and pytest: nothing is installed for it.
ifndef GPU_PYTHON
GPU_PYTHON := $(BIN)/python
test-gpu: $(DEV_STAMP)
endif
test-gpu: ## run the tests that need a GPU (GPU_PYTHON=... for another Python)
	PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m pytest tests/gpu

bench: ## list the benchmark scripts
	@printf '%s\n' $(or $(sort $(wildcard benchmarks/*.py benchmarks/*/*.py)),'no benchmark scripts yet')

clean: ## remove builds and caches; .venv and the runs in .hotlap stay
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# pip is the last thing that venv makes: without it, the folder is half made.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "The pins in constraints.txt need Python 3.11 or later: make PYTHON=python3.11 ...")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing torch in $(VENV): the first time is a large download"
	@$(PIP) install -c constraints.txt torch==2.13.0 numpy
	@echo "Installing hotlap in $(VENV)"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV_STAMP): $(DEMO_STAMP)
	@echo "Installing the test tools in $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
