# Every target calls one script or command; nothing here that cannot be run by hand.
# `make setup` comes first in all of them and costs nothing once done.

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format docs bench fuzz test-node test-proxies clean
BIN := .venv/bin

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with the pinned dependencies; does nothing when it is current
	@scripts/setup

run: setup ## Start a whole Horde with a real model on this machine; ARGS="--help" lists what can be chosen
	@exec $(BIN)/horde up $(ARGS)

test: setup ## Run every test; ARGS are pytest's
	$(BIN)/pytest -n auto --dist loadgroup $(ARGS)

lint: setup ## Check style, types and the imports between the parts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Put the code into the project's format, and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## Write the generated pages anew
	@LOGURU_LEVEL=INFO $(BIN)/python scripts/generate_docs.py

bench: setup ## Measure: front, native Horde, validation, first token against the model server alone; ARGS="--quick"
	@LOGURU_LEVEL=WARNING $(BIN)/python -m bench.front $(ARGS)
	@LOGURU_LEVEL=WARNING $(BIN)/python -m bench.native $(ARGS)
	@LOGURU_LEVEL=WARNING $(BIN)/python -m bench.validation
	@LOGURU_LEVEL=WARNING $(BIN)/python -m bench.first_token

fuzz: setup ## Call front and Horde by their own OpenAPI documents with generated requests; ARGS="native"
	@LOGURU_LEVEL=WARNING $(BIN)/python -m scripts.fuzz $(ARGS)

test-node: setup ## Run the official Node SDK against the front; needs Node.js and npm
	@LOGURU_LEVEL=WARNING $(BIN)/python -m scripts.test_node

test-proxies: setup ## Run real fronts behind HAProxy and nginx as shipped in deploy/; needs both on PATH
	$(BIN)/python -m scripts.test_proxies $(ARGS)

clean: ## Remove what setup, run and test made: .venv, .horde, caches
	rm -rf .venv .horde build dist htmlcov .coverage .coverage.*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find horde tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
