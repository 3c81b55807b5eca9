# Two commands do everything on a fresh machine with Python 3.11+:
#   make run     measure this machine, run the examples, write out/*.html
#   make test    all tests
# PyTorch's default Linux wheel is gigabytes. `make TORCH= run` leaves it out; `make TORCH=path-or-name run` takes another one.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install run test lint clean

install: $(VENV)/.installed

# A TORCH that is given here and differs from last time's installs again.
TORCH_STAMP := $(VENV)/.torch
ifneq ($(origin TORCH),file)
ifneq ($(strip $(TORCH)),$(strip $(shell cat $(TORCH_STAMP) 2>/dev/null)))
.PHONY: $(VENV)/.installed
endif
endif

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(if $(TORCH),$(BIN)/python -m pip install --quiet $(TORCH))
	$(BIN)/python -m pip install --quiet --editable ".[jax,cpu]" --group test --group models
	echo "$(TORCH)" > $(TORCH_STAMP)
	touch $@

run: install
	mkdir -p out
	$(BIN)/mansard measure --output out --force
	$(BIN)/python examples/run_all.py --output out

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache
