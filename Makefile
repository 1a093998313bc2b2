# The README's two commands are `make demo` and `make test`; each sets up everything on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all check format bench docs clean

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(INSTALL) --editable '.[dev]'
	touch $@

$(VENV)/.all: $(VENV)/.dev
	$(INSTALL) --editable '.[dev,flower,dp]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(INSTALL) --editable '.[docs]'
	touch $@

demo: $(VENV)/.run  ## train, attack and defend on real digits; writes runs/demo/report.html
	rm -rf runs/demo
	$(BIN)/gradveil audit --spec examples/demo.toml --out runs/demo

check: $(VENV)/.dev  ## format, lint, types
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check  ## what every change must pass
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: check $(VENV)/.all  ## the longer checks too, with Ray and Opacus
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.run  ## ours beside one victim at a time
	$(BIN)/gradveil bench attack --model lenet --victims 1 --victims 16 --victims 64 --iterations 40

docs: $(VENV)/.docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) runs site
