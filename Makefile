# Two commands do all the set-up on a fresh Debian machine with Python 3.11+:
#   make demo    from nothing to a model's answer        (EXIT=1 tears down instead of serving)
#   make test    install what the tests need, and pass them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 7300
BENCHMARKS = $(sort $(basename $(notdir $(shell grep -l __main__ benchmarks/*.py))))

.PHONY: demo test lint types imports bench requirements clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.demo
	@$(BIN)/wharf demo --port $(PORT) $(if $(EXIT),--exit)

test: $(VENV)/.dev
	@PYTHON_BIN=$(BIN)/python scripts/system-parts
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: $(VENV)/.dev
	$(BIN)/basedpyright

imports: $(VENV)/.dev
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	@test -n "$(filter $(NAME),$(BENCHMARKS))" || { echo "make bench NAME=x, where x is one of: $(BENCHMARKS)"; exit 2; }
	@$(BIN)/python benchmarks/$(NAME).py

requirements: $(VENV)/.dev
	scripts/compile-requirements

clean:
	rm -rf $(VENV)

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Name another with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python cannot make a virtual environment. On Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: $(VENV)/bin/pip requirements/demo.txt pyproject.toml
	@echo "installing into $(VENV) (once)" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/demo.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/pip requirements/dev.txt pyproject.toml
	@echo "installing into $(VENV) (once)" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo
