# Every command of the project. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help run test test-gateways lint format proto lock bench soak fuzz clean

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two levels of installation, each made again when what it is made from changes:
# `run` holds what ships, `dev` the rest (generators, checkers, test servers).
$(VENV)/run: requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tidegate needs Python 3.11 or newer; say make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/run.txt
	@$(BIN)/python scripts/link_checkout.py
	@touch $@

$(VENV)/dev: requirements/dev.txt $(VENV)/run
	$(PIP) install --require-hashes -r requirements/dev.txt
	@# xds-protos ships older copies of modules of opentelemetry-proto; the ones that come last stay.
	@awk '/^opentelemetry-proto==/ {on = 1} on {print} on && !/\\$$/ {exit}' requirements/dev.txt > $(VENV)/last.txt
	$(PIP) install --force-reinstall --no-deps --require-hashes -r $(VENV)/last.txt
	@touch $@

run: $(VENV)/run  ## serve on 127.0.0.1:50051 with a stand-in engine, accounts and collectors
	@exec $(BIN)/python scripts/demo.py

test: $(VENV)/dev  ## install what the suite needs and run every test that this machine can run
	@$(BIN)/python scripts/run_tests.py

test-gateways: $(VENV)/dev  ## build the Go and Node clients and examples, run them and Envoy against real servers
	@$(BIN)/python scripts/test_gateways.py

lint: $(VENV)/dev  ## formatting, types, import rules, protocol
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/python scripts/generate.py --check

format: $(VENV)/dev  ## rewrite the formatting
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/buf format --write proto

proto: $(VENV)/dev  ## generate the stubs and the other generated files again
	$(BIN)/python scripts/generate.py
	@! command -v go >/dev/null || ! command -v npm >/dev/null || $(BIN)/python -m scripts.generate_clients

lock: $(VENV)/dev  ## choose the newest versions that pyproject.toml allows
	$(BIN)/python scripts/lock.py

bench: $(VENV)/dev  ## benchmarks; each prints a ratio
	$(BIN)/python -m tests.bench

soak: $(VENV)/dev  ## the long tests
	$(BIN)/python -m pytest -m soak --timeout 3600

fuzz: $(VENV)/dev  ## every parser under a fuzzer, ten minutes each
	$(BIN)/python -m tests.fuzz

clean:  ## remove what the other commands made
	rm -rf $(VENV) build dist clients/node/dist clients/node/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
