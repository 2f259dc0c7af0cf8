SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo package test test-unit test-chart check format generate lock bench clean

##@ Use
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Train, publish and serve four hours of synthetic clicks (about two minutes); report in build/demo/report.json
	@rm -rf build/demo
	@$(BIN)/elastic-ctr synth --hours 4 --rows 200000 --seed 1 build/demo/data
	@$(BIN)/elastic-ctr local run -f build/demo/data/values.yaml -f examples/demo.yaml --dir build/demo/run --report build/demo/report.json
	@echo "report: build/demo/report.json; logs: build/demo/run/logs"

package: setup ## Pack the chart into build/; `helm install` and `helm push` take it
	@$(BIN)/python tools/generate.py --check
	@mkdir -p build
	@$(BIN)/python -c 'import helm_python; print(helm_python.package("charts/elastic-ctr", destination="build"))'

##@ Develop
setup: ## Make .venv (Python 3.10 to 3.12, locked requirements); nothing to do when it is current
	@tools/setup

test: setup ## Run every test that needs no cluster: unit, contract, chart, pipeline
	@$(BIN)/python -m pytest tests/unit tests/contract tests/chart tests/pipeline

test-unit: setup ## Run the tests that need nothing
	@$(BIN)/python -m pytest -q tests/unit

test-chart: setup ## Run the tests of the rendered chart
	@$(BIN)/python -m pytest -q tests/chart

check: setup ## Lint, types, layers, and that what is generated is current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/generate.py --check

format: setup ## Format the code
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format -q .

generate: setup ## Write what is generated: the control protocol's code, the configuration reference, the chart's schema and README
	@$(BIN)/python tools/generate.py

lock: ## Lock the requirements anew (needs uv)
	@for name in dev paddle cube; do \
	  uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
	    $$([ $$name = dev ] || echo --constraint requirements/dev.txt) \
	    requirements/$$name.in --output-file requirements/$$name.txt; \
	done

bench: setup ## Measure the hot paths beside what users would otherwise run
	@for each in bench/*.py; do echo "== $$each"; $(BIN)/python $$each; done

clean: ## Remove what make made, but for .venv
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
