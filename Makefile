# Everything a person runs. A fresh machine needs make, Python 3.11 and a C++ compiler; `make setup` checks the rest.
# Another interpreter: make PYTHON=/path/to/python3.11 setup

# Absolute, because PATH changes below and must not lead set-up into the environment that it makes.
SYSTEM_PYTHON := $(shell command -v python3.11 || command -v python3)
PYTHON ?= $(SYSTEM_PYTHON)
RUN := .venv/bin/python

# DeepSpeed looks for ninja on PATH and for its compiled pieces in TORCH_EXTENSIONS_DIR.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export TORCH_EXTENSIONS_DIR := $(CURDIR)/.venv/torch_extensions

.DEFAULT_GOAL := help
.PHONY: help setup demo up stop demo-terminal browser screenshots test test-long check check-platform check-rest lint format bench lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## check the machine, make .venv and .venv-sandbox, compile DeepSpeed's C++ pieces, build the front end
	@test -n "$(PYTHON)" || { echo "make: no python3.11 or python3 on PATH: apt-get install python3.11 python3.11-venv python3.11-dev" >&2; exit 1; }
	@"$(PYTHON)" scripts/setup.py

demo: setup ## start the platform, its first login and a demo run, and print the address
	@$(RUN) manage.py up --demo

up: setup ## start the platform; Ctrl-C stops it
	@$(RUN) manage.py up

stop: ## stop the platform from another terminal
	@$(RUN) manage.py down

demo-terminal: setup ## train and evaluate the same tiny model without the platform, into runs/demo-<time>
	@$(RUN) -m engine run engine/recipes/demo.toml --out runs/demo-$$(date +%Y%m%d-%H%M%S)

browser: setup ## find a Chromium for the browser tests, or get one
	@$(RUN) -m scripts.browser

screenshots: browser ## docs/screenshots/ anew, from a finished run of the platform that runs (RUN_ID=run_...)
	@$(RUN) -m scripts.screenshots $(RUN_ID)

# Without a browser the tests that need one fail, and say the same again.
test: setup ## every test but the long ones
	@$(RUN) -m scripts.browser || true
	@$(RUN) -m pytest -m "not long"

test-long: setup ## the slow tests: minutes each, or whole lines whose parts faster tests hold
	@$(RUN) -m pytest -m long

check: lint ## what to run before a commit: lint, types, import contracts, fast tests (under 3 minutes)
	@$(MAKE) --no-print-directory --output-sync=target --jobs=2 check-platform check-rest

# The fast tests in two halves at once: none of them needs a core for long.
check-platform: ## its half with the database
	@$(RUN) -m pytest -q -m "not e2e and not long" tests/webapp

check-rest: ## its other half
	@$(RUN) -m pytest -q -m "not e2e and not long" --ignore=tests/webapp

lint: setup ## ruff, mypy and the import contracts
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@.venv/bin/lint-imports

format: setup ## let ruff sort imports and format the code
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: setup ## run the benchmarks, write benchmarks/results.json
	@$(RUN) -m benchmarks --json benchmarks/results.json

lock: ## resolve requirements/*.in anew into requirements/*.lock, in a throw-away environment
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && "$(PYTHON)" -m venv "$$folder" \
		&& "$$folder/bin/python" -m pip install --quiet --upgrade pip \
		&& "$$folder/bin/python" scripts/lock.py

clean: ## remove both environments, the front end's build and the tools' caches; runs/ and var/ stay
	rm -rf .venv .venv-sandbox frontend/node_modules platform/webapp/ui/static/ui/bundle .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find engine sandbox platform scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
