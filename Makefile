# Three commands matter: `make demo`, `make check` and `make test`. All work from a bare clone with Python 3.11+, make and pip.

PYTHON ?= python3
# Any PyTorch from 2.4 on will do. From some indexes this one brings gigabytes of CUDA libraries: to take a CPU build
# instead, point pip at one (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) or name another, as in make TORCH='torch==2.9.1+cpu'.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo check test lint puretest docs clean

help: ## say what the targets are
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 14

demo: $(VENV)/.ready ## six real training jobs grow, shrink, re-tune and survive a kill here; then four policies in the simulator
	@$(BIN)/geminid demo
	@mkdir -p build
	@$(BIN)/geminid simulate --workload small --policy fifo,tiresias,sia,geminid --report build/demo-report.html

check: $(VENV)/.ready-dev ## lint, types, layers, unit and property tests: what to run before every commit
	@$(MAKE) --no-print-directory -j 2 lint puretest

puretest: $(VENV)/.ready-dev
	GEMINID_TEST_QUICK=1 $(BIN)/python -m pytest -n 2 --dist loadgroup tests/unit tests/property

test: lint ## everything that must hold: lint, types, layers, all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.ready-dev ## ruff, mypy --strict, and the layer contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.ready-docs ## the documentation as a site, in build/site
	$(BIN)/python -m mkdocs build --strict --quiet --clean
	@echo "Open build/site/index.html"

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Geminid needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module is incomplete; on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo "Installing Geminid and $(TORCH) into $(VENV) (a minute or two, once) ..."
	@$(BIN)/python -m pip install --quiet $(TORCH) -e '.[torch]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "Installing the development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet $(TORCH) -e '.[torch,ray,accelerate,dev,docs]'
	@touch $@

$(VENV)/.ready-docs: pyproject.toml | $(BIN)/python
	@echo "Installing MkDocs into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@
