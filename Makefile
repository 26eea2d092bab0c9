# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo   trains SAVE on Tightrope for about a minute and draws the curve
#   make test   lint, types and all tests
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types slow docs clean

demo: $(VENV)/.run
	$(BIN)/save-rl demo --out runs/demo

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/pytest -n 2 --dist loadgroup

slow: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m slow

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

# An environment that is absent, broken or of an earlier pyproject.toml is made anew or brought up
# to date. uv is used where it is installed, plain venv and pip elsewhere.
$(VENV)/.run $(VENV)/.dev: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "save-rl needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { rm -rf $(VENV); \
	  if command -v uv >/dev/null 2>&1; then uv venv --quiet --python $(PYTHON) $(VENV); \
	  else $(PYTHON) -m venv $(VENV); fi; }
	@echo "installing (a minute or two the first time) ..."
	@extra=$(if $(filter %.dev,$@),'.[dev]','.'); \
	if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python -e $$extra; \
	else $(BIN)/python -m pip install -qq -e $$extra; fi
	@touch $@

clean:
	rm -rf $(VENV) .cache runs site
