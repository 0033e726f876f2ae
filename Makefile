# Everything that these commands need is built in .engines on first use.
#
#   make demo         serve the tiny Kimi-K2.5 on stock SGLang and show what the plugin does
#   make test         all tests: units on every core, then real engines of the main releases
#   make test-fast    the tests that start no engine, on every Python found (a minute or two each)
#   make test-matrix  real engines of every release, 0.5.9 to 0.5.23
#   make lint         ruff and mypy
#   make docs         the documentation, into build/docs
#   make dist         the wheel and the source archive, checked, into dist
#   make bench        the benchmarks, with a report for each

PYTHON ?= python3
ENGINES := $(or $(SGLANG_KIMI_EAGLE_ENGINES),.engines)
# The engine runs on the Python that SGLang's wheels are built for.
ENGINE_PYTHON ?= $(PYTHON)
OTHER_PYTHONS := 3.10 3.12 3.13
# An engine takes every core; the other tests share them.
PARALLEL := --numprocesses auto --dist loadfile
FAST := -q $(PARALLEL) --ignore tests/engine -m "not engine and not matrix and not wheels and not measure"
RUN := $(ENGINES)/tools/bin/python
export PYTHONPATH := tests

.PHONY: demo test test-fast test-matrix lint docs dist bench clean

demo: $(ENGINES)/tools/ready
	$(RUN) -m cpu_engine.demo

test: $(ENGINES)/tools/ready
	$(RUN) -m pytest $(PARALLEL) -m "not engine and not matrix"
	$(RUN) -m pytest -m "engine and not matrix"

test-fast: $(ENGINES)/tools/ready
	$(RUN) -m pytest $(FAST)
	@for version in $(OTHER_PYTHONS); do \
	  for python in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python$$version; do \
	    if $$python -c pass 2>/dev/null; then \
	      echo "Python $$version"; \
	      $(MAKE) --no-print-directory $(ENGINES)/python$$version/ready OTHER_PYTHON=$$python \
	      && $(ENGINES)/python$$version/bin/python -m pytest $(FAST) || exit 1; \
	      break; \
	    fi; \
	  done; \
	done

test-matrix: $(ENGINES)/tools/ready
	$(RUN) -m pytest -m matrix

lint: $(ENGINES)/tools/ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(ENGINES)/tools/ready
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet

dist: $(ENGINES)/tools/ready
	rm -rf dist
	$(RUN) -m build --outdir dist .
	$(RUN) -m twine check --strict dist/*

bench: $(ENGINES)/tools/ready
	$(RUN) -m benchmarks.startup_hook
	$(RUN) -m benchmarks.validate_drafter
	$(RUN) -m benchmarks.fuzz
	$(RUN) -m benchmarks.refusal
	$(RUN) -m benchmarks.acceptance
	$(RUN) -m benchmarks.probe
	$(RUN) -m benchmarks.wiring_worth
	$(RUN) -m benchmarks.cost
	$(RUN) -m benchmarks.load
	$(RUN) -m benchmarks.pull_request
	$(RUN) docs/generate.py

$(ENGINES)/tools/ready: pyproject.toml tests/requirements.txt docs/requirements.txt
	$(ENGINE_PYTHON) -m venv --clear $(ENGINES)/tools
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24'
	$(RUN) -m pip install --quiet --disable-pip-version-check -e . -r tests/requirements.txt -r docs/requirements.txt
	touch $@

$(ENGINES)/python%/ready: pyproject.toml tests/requirements.txt
	$(OTHER_PYTHON) -m venv --clear $(ENGINES)/python$*
	$(ENGINES)/python$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24'
	$(ENGINES)/python$*/bin/python -m pip install --quiet --disable-pip-version-check -e . -r tests/requirements.txt
	touch $@

clean:
	rm -rf $(ENGINES)
