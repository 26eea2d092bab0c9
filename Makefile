# Two commands do everything on a fresh machine with Python 3.11 to 3.13 and make:
#   make demo   trains SAVE, Q-learning and PUCT on Tightrope for about a minute and draws the curve
#   make test   lint, types and the tests, under five minutes on two cores
# For people who work on save_rl:
#   make test-all   every test, the long ones too
#   make fuzz       the property tests with fresh random examples
#   make package    builds wheel and sdist, installs the wheel elsewhere and runs the demo there
#   make lock       renews constraints.txt, the exact versions that demo and test install
#   make lowest     the tests with the lowest versions that pyproject.toml allows
#   make docs       the documentation as a web site
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup
COMPILE := $(BIN)/python -W ignore -m tests.compile_kernels
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many Python processes, and without bytecode on disk each compiles jax anew.
unexport PYTHONDONTWRITEBYTECODE
# uv is faster where it is installed; venv and pip do the same.
UV := $(shell command -v uv 2>/dev/null)
make_venv = $(if $(UV),uv venv --quiet --python "$$(command -v $(PYTHON))" $(1),$(PYTHON) -m venv $(1))
install = $(if $(UV),uv pip install --quiet --compile-bytecode --python $(1)/bin/python,$(1)/bin/python -m pip install -qq)

.PHONY: demo test test-all lint pytest slow fuzz package lock lowest docs clean browser

demo: $(VENV)/.run
	$(BIN)/save-rl demo --out runs/demo

# Kernels are compiled on one core while the other does the rest.
test: $(VENV)/.dev
	@$(COMPILE) search & $(MAKE) --no-print-directory lint && $(COMPILE) construction && wait $$!
	@$(MAKE) --no-print-directory pytest

test-all: test slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

pytest: $(VENV)/.dev browser
	$(PYTEST)

slow: $(VENV)/.dev browser
	$(PYTEST) -m slow

# The pages of the studio are tested in a real browser, Debian's.
browser:
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium ..." && \
	    apt-get update -qq >/dev/null && apt-get install -qq -y chromium >/dev/null 2>&1; } || \
	  echo "no chromium here: tests of the studio's pages are skipped (apt-get install chromium)"

fuzz: $(VENV)/.dev
	$(PYTEST) -m property --hypothesis-profile fuzz

package: $(VENV)/.dev
	$(BIN)/pytest tests/test_package.py -m "slow or not slow"

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.dev
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --no-annotate --no-emit-index-url --no-header pyproject.toml -o constraints.txt

# Old versions warn about the newest versions of what they depend on.
lowest: $(VENV)/.dev
	rm -rf .venv-lowest && $(PYTHON) -m venv .venv-lowest
	$(BIN)/uv pip install --quiet --compile-bytecode --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-lowest/bin/pytest -n 2 --dist loadgroup -W default::DeprecationWarning

# An environment that is absent, broken or older than these files is made anew or brought up to date.
$(VENV)/.run $(VENV)/.dev: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "save-rl needs Python 3.11 to 3.13; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(BIN)/python -c '$(if $(UV),,import pip)' 2>/dev/null || { rm -rf $(VENV); $(call make_venv,$(VENV)); }
	@echo "installing (a minute or two the first time) ..."
	@$(call install,$(VENV)) -c constraints.txt -e '.$(if $(filter %.dev,$@),[dev],)'
	@touch $@

clean:
	rm -rf $(VENV) .venv-lowest .cache runs site dist
