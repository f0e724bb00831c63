# Two commands do all the set-up: `make demo` and `make test`. Both install into .venv once and only run afterwards;
# stamp files inside the environments remember what was installed from what.

PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install -qq --constraint constraints.txt
SOURCES := $(shell find overlay -type f -not -name '*.pyc') registry.yaml registry.lock pyproject.toml README.md LICENSE
# The one wheel, found by the shell when a recipe runs: make remembers directories from before it was built.
WHEEL := $$(echo dist/*.whl)

# The lane without torch: every other base dependency, and what its tests need.
NO_TORCH := click filelock huggingface_hub pydantic ruamel.yaml safetensors xxhash \
	hypothesis jsonschema numpy pytest pytest-randomly pytest-timeout pytest-xdist

# Two processes; neighbours share what a module made, and who is done takes work from the other.
WORKERS := -n 2 --dist worksteal

# Tests import the installed wheel; tests/conftest.py refuses the checkout.
PYTEST := OVERLAY_TEST_INSTALLED=1 $(BIN)/pytest $(WORKERS)

# Test modules are compiled once, not by every worker of every lane.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-rest test-slow test-no-torch check format docs clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo           install into .venv and run the whole job on a tiny checkpoint'
	@echo 'make test           install what tests need, then: check, test-no-torch, test-rest, test-slow'
	@echo 'make check          lint, format, types'
	@echo 'make test-fast      the default tests, on the installed wheel'
	@echo 'make test-slow      the slow tests; fetches the released servers that some of them import into .servers'
	@echo 'make test-no-torch  the tests that must pass where torch is not installed'
	@echo 'make test-rest      the default tests but for those: what make test runs after them'
	@echo 'make format         format the code and fix what ruff can fix'
	@echo 'make docs           write the generated reference pages and JSON schemas again'
	@echo 'make clean          remove the environments and everything built'

demo: .venv/.installed
	$(BIN)/overlay demo
	@echo
	@echo 'To use the program in this shell: export PATH="$(CURDIR)/$(BIN):$$PATH"'

test: .venv/.installed-dev .venv-no-torch/.installed
	$(MAKE) check
	$(MAKE) test-no-torch
	$(MAKE) test-rest
	$(MAKE) test-slow

check: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test-fast: .venv/.installed-dev
	$(PYTEST)

# `make test` has just run what is marked no_torch, in an environment of its own. Those tests import no torch, so they are
# left out here, but for the few that watch over torch where it is there. `make test-fast` leaves out nothing.
test-rest: .venv/.installed-dev
	$(PYTEST) -m 'not slow and not gpu and (not no_torch or with_torch)'

test-slow: .venv/.installed-dev .servers/.fetched
	$(PYTEST) -m 'slow and not gpu'

test-no-torch: .venv-no-torch/.installed
	OVERLAY_TEST_INSTALLED=1 .venv-no-torch/bin/pytest $(WORKERS) -m 'no_torch and not slow'

format: .venv/.installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: .venv/.installed-dev
	$(BIN)/python tools/generate_docs.py

clean:
	rm -rf .venv .venv-no-torch .servers build dist

.venv/.created: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) build
	touch $@

dist/.built: .venv/.created $(SOURCES)
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --wheel --outdir dist .
	touch $@

# The wheel keeps its version while its content changes: it is installed by force, its dependencies as needed.
.venv/.installed: dist/.built
	$(BIN)/python $(PIP) --force-reinstall --no-deps $(WHEEL)
	$(BIN)/python $(PIP) $(WHEEL)
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python $(PIP) "$(WHEEL)[dev]"
	touch $@

.venv-no-torch/.created: constraints.txt
	$(PYTHON) -m venv .venv-no-torch
	.venv-no-torch/bin/python $(PIP) $(NO_TORCH)
	touch $@

.venv-no-torch/.installed: .venv-no-torch/.created dist/.built
	.venv-no-torch/bin/python $(PIP) --force-reinstall --no-deps $(WHEEL)
	touch $@

# The released servers' own modules. Where they cannot be fetched that is a failure: they are what the tests are for.
.servers/.fetched: .venv/.created tools/fetch_servers.py
	$(BIN)/python tools/fetch_servers.py .servers
	touch $@
