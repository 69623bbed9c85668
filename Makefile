# make train: watch one model being trained by five processes, one of which is killed and comes back.
# make test: every check. Both create the environment first; PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3
TORCH_BUILD ?= cpu
# cpu keeps gigabytes of GPU libraries away; for NVIDIA GPUs say, for example, TORCH_BUILD=cu130.

BIN := .venv/bin
INSTALLED := .venv/installed-$(TORCH_BUILD)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: train test lint bench clean
.DELETE_ON_ERROR:

train: $(INSTALLED)
	$(BIN)/unlockstep train $(ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	for benchmark in benchmarks/*.py; do $(BIN)/python "$$benchmark" || exit 1; done

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

# torch comes first, as the build asked for, from the package index in use or else from torch's own.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps "torch==$(TORCH)+$(TORCH_BUILD)" || \
	$(BIN)/python -m pip install --quiet --no-deps --index-url https://download.pytorch.org/whl/$(TORCH_BUILD) "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[torch,dev]"
	rm -f .venv/installed-*
	touch $@
