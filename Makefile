# Every target sets up what it needs, in an empty environment.  PYTHON, VENV and PYTEST_ARGS may be overridden.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST_ARGS ?=

# What the native part and the generated messages are built from: a change here means a new installation.
NATIVE := pyproject.toml CMakeLists.txt $(shell find gpukernel -name '*.proto' -o -name 'CMakeLists.txt' -o -name '*.cmake' \
            -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -path '*/codegen/*.py')

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs bench suites screenshots wheel system clean

help:  ## What can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## Run the demo notebook on a slice of a simulated V100, then open JupyterLab
	$(BIN)/gpukernel demo

test: $(VENV)/.test  ## Run the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.dev  ## Bring all code into the one style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

docs: $(VENV)/.dev  ## Build the documentation into site/, warnings as errors
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.test  ## Measure, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

suites: $(VENV)/.test  ## Run other people's test suites whole on a slice (half an hour)
	$(BIN)/python -m tests.suites

screenshots: $(VENV)/.dev  ## Take the pictures in docs/images again (needs Chromium)
	$(BIN)/python docs/screenshots.py

wheel: $(VENV)/.dev  ## Build a wheel into dist/
	$(BIN)/pip wheel --no-deps -w dist .

clean:  ## Remove everything that was built
	rm -rf $(VENV) build dist site

# --- environments: one stamp an extra, each an editable installation of this checkout ---------------------------
$(VENV)/bin/python: | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: $(NATIVE) | $(VENV)/bin/python
	@echo "Installing gpukernel with its '$*' extra into $(VENV): a few minutes the first time …"
	$(BIN)/pip install --quiet --editable '.[$*]'
	@touch $@

# A compiler, and Python with venv: installed where that is allowed, named where it is not.
system:
	@deploy/system-packages.sh
