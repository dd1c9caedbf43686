# Every target sets itself up: it needs Python 3.11 or newer, make and a package index, and is quick the second time.
#
#   make PYTHON=/path/to/python3.12 test     another interpreter
#   make VENV=/tmp/elsewhere test            another place for the environment
#   make HOLDFAST_SEED=20260101 soak         the same faults again

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV ?= .venv
EXTRAS ?= torch,dev
SOAK_SECONDS ?= 25
ARGS ?=
PY := $(VENV)/bin/python

# The stamp carries the checksum of what was asked for, so that a change there, and nothing else, installs again.
ASKED := $(shell (cat pyproject.toml constraints.txt; echo '$(EXTRAS)') | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.holdfast-ready-$(ASKED)

# Suitable means that it runs (a version switcher leaves names that do not), is new enough, and can make an environment.
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# uv ignores pip's settings, so those that say where packages come from are handed on; an empty value is accepted.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Where this is set, every process compiles torch anew, and most of the tests' time would go into it.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help venv packages demo test test-all test-unprivileged soak bench lint clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | while IFS='	' read -r name text; do printf '  make %-18s %s\n' "$$name" "$$text"; done

venv: $(STAMP)  ## Make the environment (.venv) with everything the other targets need

$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	if ! $(PY) -c '$(SUITABLE)' 2>/dev/null; then \
	  for candidate in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14); do \
	    if $$candidate -c '$(SUITABLE)' 2>/dev/null; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$${python:-}" ]; then \
	    echo "holdfast: no suitable Python among: $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)." >&2; \
	    echo "  Expected version 3.11 or newer with the modules venv and ensurepip (Debian and Ubuntu: apt install python3-venv)." >&2; \
	    echo "  Seen: python3 is $$(python3 --version 2>&1 | head -n 1). Name another one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	  fi; \
	  echo "holdfast: making $(VENV) with $$($$python -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	  $$python -m venv --clear $(VENV); \
	fi; \
	rm -f $(VENV)/.holdfast-ready-*; \
	if [ ! -x $(VENV)/bin/uv ] && ! $(PY) -m pip install --quiet uv; then \
	  echo "holdfast: uv could not be had, which only costs time: pip takes about a minute" >&2; \
	fi; \
	echo "holdfast: installing .[$(EXTRAS)] with the versions of constraints.txt"; \
	if ! { [ -x $(VENV)/bin/uv ] && $(VENV)/bin/uv pip install --python $(PY) -c constraints.txt -e '.[$(EXTRAS)]'; }; then \
	  echo "holdfast: installing with pip"; \
	  $(PY) -m pip install -c constraints.txt -e '.[$(EXTRAS)]'; \
	fi; \
	touch $@; \
	echo "holdfast: $(VENV) is ready"

# The packages of Prometheus start a service each when they are installed, unless this file forbids it; the tests start their own, on free ports.
POLICY := /usr/sbin/policy-rc.d
HAVE_PROMETHEUS := command -v promtool >/dev/null && command -v prometheus-alertmanager >/dev/null

# What the tests need and Python's index does not have. Without it the tests that need it are skipped, counted and named.
packages:  ## Where root runs this on Debian: what the tests need beside Python's packages
	@command -v ip >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -qq -y iproute2; } || true
	@$(HAVE_PROMETHEUS) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	  [ -e $(POLICY) ] || { printf '#!/bin/sh\nexit 101\n' >$(POLICY) && chmod +x $(POLICY) && ours=1; }; \
	  apt-get install -qq -y --no-install-recommends prometheus prometheus-alertmanager; \
	  [ -z "$${ours:-}" ] || rm -f $(POLICY); }; } || true

demo: venv  ## Train through a storm of real faults and read the report (under 3 minutes)
	@$(VENV)/bin/holdfast demo $(ARGS)

test: lint packages test-unprivileged  ## Lint, then all but the slow tests, ending with a slice of the soak (about 26 minutes on two cores)
	@$(PY) tests/twice.py -m "not slow" --soak-seconds $(SOAK_SECONDS) $(ARGS)

test-all: lint packages test-unprivileged  ## Everything, with full counts (long)
	@$(PY) -m pytest -m "" $(ARGS)

test-unprivileged: venv  ## The tests that must pass for any user, under another uid when root
	@$(PY) tests/as_user.py -m "unprivileged and not slow and not soak" $(ARGS)

soak: venv  ## Only the soak: random faults for SOAK_SECONDS, from a printed seed
	@$(PY) -m pytest -m soak --soak-seconds $(SOAK_SECONDS) $(ARGS)

bench: venv  ## The benchmark tables beside the peers'; QUICK=1 for a first look; JSON under bench-results/
	@mkdir -p bench-results; set -e; \
	for file in benchmarks/[a-z]*.py; do \
	  name=$$(basename $$file .py); \
	  echo "holdfast: $$file"; \
	  $(PY) $$file $(if $(QUICK),--quick) --json bench-results/$$name.json $(ARGS); \
	done

lint: venv  ## ruff, mypy --strict, and who may import whom
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

clean:  ## Remove all that make and the tools made here
	rm -rf $(VENV) bench-results build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
