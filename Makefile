# make train: watch one model being trained by six processes, one of which is killed and comes back.
# make test: every check but the long tests; make test-slow: those.
# All create the environment first; PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3

BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: train test test-slow lint fuzz bench clean
.DELETE_ON_ERROR:

train: $(INSTALLED)
	$(BIN)/unlockstep train $(ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "slow and not gpu" $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[fuzz]"
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python fuzz/fuzz.py $(or $(SECONDS),60) $(READERS)

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	for benchmark in benchmarks/*.py; do $(BIN)/python "$$benchmark" || exit 1; done

clean:
	rm -rf .venv .fuzz .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[torch,dev]"
	touch $@
