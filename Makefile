# Every target stands on `setup`: a fresh machine needs Python 3.10 to 3.12 and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.trtb-installed
TYPES  := .scratch/types/trtb
TOOLCHAINS := $(CURDIR)/.cache/toolchain-home
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup demo toolchains browser test check bench dist clean

help:
	@echo "make setup   the environment in $(VENV), with the trtb command in it"
	@echo "make demo    build the engine, answer a sample file, print the report"
	@echo "make test    the whole test suite"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make browser the browser that looks at the pages"
	@echo "make bench   the quick form of every benchmark"

setup: $(STAMP) $(TYPES)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 12) else "trtb needs Python 3.10 to 3.12, and $(PYTHON) is %d.%d; run: make PYTHON=python3.11 $(MAKECMDGOALS)" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# mypy reads the checkout through a folder that is called trtb, as the package is
$(TYPES):
	@mkdir -p $(dir $@)
	@ln -sfn ../.. $@

demo: setup
	@BIN=$(BIN) sh tools/demo.sh

# kept between runs: about 3 GB, and minutes to install
toolchains: setup
	TRTB_HOME=$(TOOLCHAINS) $(BIN)/trtb toolchain install modelopt optimum perf_analyzer

# one that is installed, or a pinned Chromium in .cache/browser (190 MB)
browser: setup
	$(BIN)/python tests/browser/fetch_browser.py

test: setup check toolchains browser
	TRTB_TEST_TOOLCHAINS=$(TOOLCHAINS) $(BIN)/pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@# not from the root, where build/ would be found twice; the engine is the demo's unless TRTB_HOME is set
	cd $(VENV) && TRTB_HOME=$${TRTB_HOME:-$(CURDIR)/.cache/trtb} bin/python -m trtb.tools.bench --quick

# setuptools ships what an earlier build left behind, deleted modules included
dist: setup
	@rm -rf .scratch/build
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir .scratch/dist .

clean:
	rm -rf $(VENV) .scratch .mypy_cache .ruff_cache .pytest_cache *.egg-info
