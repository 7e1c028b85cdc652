PYTHON ?= python3
VENV := .venv/bin
ARGS ?=

.PHONY: help setup setup-test train test test-all check bench doctor clean

help:           ## what the targets do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

setup:          ## set up .venv (idempotent; the other targets do it themselves)
	@$(PYTHON) setup/install.py

setup-test:
	@$(PYTHON) setup/install.py --alfworld

train: setup    ## train SmolLM2-135M on arithmetic; ARGS="key=value …" override the configuration
	@$(VENV)/winnowrl train configs/quickstart.yaml $(ARGS)

test: setup-test ## the default tests
	@$(VENV)/python -m pytest $(ARGS)

test-all: setup-test ## every test, the slow ones included
	@$(VENV)/python -m pytest -m "" $(ARGS)

check: setup-test ## format, lint, types, tests
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy
	$(VENV)/python -m pytest

# Left out: what other benchmarks start or import, and the 50 minutes of methods.py.
BENCHMARKS := $(filter-out %_peer.py %_sides.py %_alone.py benchmarks/converging_policy.py benchmarks/methods.py, $(wildcard benchmarks/*.py))

bench: setup-test ## every benchmark but methods.py, one after the other
	@for script in $(BENCHMARKS); do echo "== $$script"; $(VENV)/python $$script || exit 1; done

doctor: setup   ## check every part of the installation
	@$(VENV)/winnowrl doctor

clean:          ## remove caches and build products (not .venv, not runs)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
