# Everything is started from here. `make help` lists the commands.

SHELL := /bin/sh
# python3 if it is new enough, else the newest one that is.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$name" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
# What pytest gets, for example `make test T="tests/unit -x"`.
T ?= -n 2
# What `recall up` gets, for example `make up ARGS=--detach`.
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help up test check fmt bench docs clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

up: $(VENV)/.stamp-server ## Install, read the session logs of this machine and serve the API until Ctrl-C
	@$(BIN)/recall up $(ARGS)

test: $(VENV)/.stamp-dev ## Run the tests (T="..." for pytest)
	@$(BIN)/pytest $(T)

check: $(VENV)/.stamp-dev ## Lint, types, layers and generated docs; changes nothing
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python ops/docs.py --check

fmt: $(VENV)/.stamp-dev ## Format the code and repair what lint can repair
	@$(BIN)/ruff check --fix --exit-zero --quiet
	@$(BIN)/ruff format

bench: $(VENV)/.stamp-server ## Run a small version of every benchmark (see ops/bench/README.md)
	@$(BIN)/python ops/bench/ingest.py --only compare --mb 30 --rounds 1 --no-peer
	@$(BIN)/python ops/bench/fidelity.py
	@$(BIN)/python ops/bench/search.py --rows 20000 --queries 5 --rounds 1 --reference 2 --no-cold
	@$(BIN)/python ops/bench/vectors.py --rows 5000 --queries 10 --rounds 1
	@$(BIN)/python ops/bench/embed.py --rows 40 --rounds 1 --no-table
	@$(BIN)/python ops/bench/beside.py --rows 6000 --rounds 1 --queries 10

docs: $(VENV)/.stamp-server ## Write docs/reference from the code
	@$(BIN)/python ops/docs.py

clean: ## Remove the environment and all caches; your data stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-server: pyproject.toml | $(BIN)/python
	@echo "installing recall into $(VENV)" >&2
	@$(PIP) -e '.[server]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(BIN)/python
	@echo "installing recall and its tools into $(VENV)" >&2
	@$(PIP) -e '.[server,dev]'
	@touch $@ $(VENV)/.stamp-server

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'error: Recall needs Python 3.11 or newer, and no such python3 is on the PATH' >&2; \
		echo 'hint: install it, or name it: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'error: Recall needs Python 3.11 or newer; $(PYTHON) is older or does not run' >&2; exit 1; }
	@if '$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null; then '$(PYTHON)' -m venv $(VENV); \
	elif '$(PYTHON)' -c 'import virtualenv' 2>/dev/null; then '$(PYTHON)' -m virtualenv --quiet $(VENV); \
	else echo 'error: $(PYTHON) cannot make virtual environments' >&2; \
		echo 'hint: apt install python3-venv (Debian, Ubuntu), or pip install virtualenv' >&2; exit 1; fi
