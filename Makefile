# `make demo` and `make test` do all set-up on a fresh machine (a virtual environment in .venv), without root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo docs test test-browser lint types unit whole fuzz bars interface install clean

demo: $(STAMP)
	$(BIN)/dyart demo

test: lint types unit whole

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -n auto -m "not browser and not whole"

# Commands, benchmarks, pages and figures, notebooks, other packages, several processes.
whole: $(STAMP)
	$(BIN)/pytest -n auto -m "whole and not browser"

# After a change of the public interface that was meant: store it anew, for tests/test_interface.py.
interface: $(STAMP)
	$(BIN)/python tests/interface_text.py

# The page of a run in a real browser; skipped, with a line that says so, where there is none.
test-browser: $(STAMP)
	$(BIN)/pytest -m browser -rs tests/browser

# The documentation, into build/site. A link that leads nowhere, or a docstring that cannot be read, is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# 10,000 altered recipes, models, checkpoints and data files, other ones every time; `make test` has a few hundred.
fuzz: $(STAMP)
	DYART_FUZZ=10000 $(BIN)/pytest -n auto tests/fuzz

# What takes too long for every change: 20 kills, 200 faults, the cost of checkpoints. Writes benchmarks/results/reliability.json.
bars: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reliability.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
