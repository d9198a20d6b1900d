# Every target makes the virtual environment .venv first if it is missing; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check docs format bench results clean

demo: $(STAMP)  ## Train the four settings on the embedded data set and write a report.
	$(BIN)/aoq demo

test: $(STAMP)  ## All tests that take seconds.
	$(BIN)/pytest -q -n 2 --dist loadgroup --no-loadscope-reorder --maxfail 30

test-slow: $(STAMP)  ## The tests that take minutes.
	$(BIN)/pytest -q -n 2 -m slow

check: $(STAMP)  ## Style, types and the layers of the design.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)  ## The documentation as a site, in build/site; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Speed and memory against stated baselines; results go to benchmarks/results.
	$(BIN)/python -m benchmarks

results: $(STAMP)  ## The tables of docs/results.md and README.md, from the files in results/.
	$(BIN)/python -m reproduction page

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
