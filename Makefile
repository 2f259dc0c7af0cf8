SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin

# Variables of images, clusters and Helm, for example: make images TAG=0.1.0 PYTHON_IMAGE=mirror/python:3.11
TAG ?= dev
REGISTRY ?=
DOCKER ?= docker
PYTHON_IMAGE ?= python:3.11-slim-bookworm
DEBIAN_IMAGE ?= debian:bookworm-slim
export HELM ?= helm
export CLUSTER ?= ctr
# Empty: kind's default. VOLCANO=none leaves Volcano out; see tests/cluster/kind-up for the others.
export KIND_NODE_IMAGE ?=
export VOLCANO ?=
export METRICS_SERVER ?=
# The script that brings the cluster up.
KIND_UP ?= tests/cluster/kind-up
# The tests of `make cluster-test`.
CLUSTER_TESTS ?= tests/cluster
CLUSTER_PYTEST = $(BIN)/python -m pytest -p helm-charts -W "ignore:cannot discover fixture:pytest.PytestWarning" --durations=0 --durations-min=5
# How many test files run at once: more than cores, because tests wait, too. The file that takes longest is the first.
LONGEST = tests/contract/test_bounds_checking.py
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
UNIT_JOBS ?= $(shell echo $$((3 * $$(nproc))))
# Ledgers, stores and logs are synced to disk with each commit. Where there is room, the files of unit tests are in memory, and nothing
# waits for that; a test that has passed leaves none.
MEMORY := $(shell df --output=avail --block-size=G /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 + 0 >= 8 {print "/dev/shm"}')
UNIT_PYTEST = $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY) )$(BIN)/python -m pytest -q -o tmp_path_retention_policy=failed
# The time of the package's files in images, in seconds since 1970: `make release` sets that of its commit.
SOURCE_DATE_EPOCH ?= 1577836800
# `make release VERSION=0.1.0`: the version that this source has. KEY is a private key that signs, PUBLIC_KEY the one that `make verify` trusts.
VERSION ?=
KEY ?=
PUBLIC_KEY ?=
# The release that an upgrade begins with: that of the last tag before this commit, unless ELASTIC_CTR_BEFORE names another commit.
BEFORE = $(or $(ELASTIC_CTR_BEFORE),$(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null))
# NO_CACHE=1: images are built without docker's cache.
NO_CACHE ?=
# A folder with `hdfs`, which starts NameNode and DataNode, and `lib`, Hadoop's jars; empty: no image of HDFS.
HDFS_CONTEXT ?=

# The values and the folder of `make demo`.
DEMO = -f build/demo/data/values.yaml -f examples/demo.yaml --dir build/demo/run

IMAGES := $(if $(REGISTRY),$(REGISTRY)/)elastic-ctr
CLUSTER_IMAGES := $(if $(REGISTRY),$(REGISTRY)/)elastic-ctr-test
LOCK = uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate
BUILD = $(DOCKER) build --quiet $(if $(NO_CACHE),--no-cache )--build-arg VERSION=$(TAG) --build-arg REVISION=$$(git rev-parse --verify --quiet HEAD || echo unknown)
BASE = --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH)
RELEASE = PYTHONPATH=tools $(BIN)/python -m release

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo stream-demo package release verify images images-before test-images images-nightly cluster-images tracking-image kind-up kind-load cluster-test cluster-nightly cluster-upgrade kind-down docs test nightly bounds test-unit test-chart check format generate lock bench fuzz house clean

##@ Use
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with the packages that run elastic-ctr (Python 3.10 to 3.12, locked)
	@tools/setup

demo: setup ## Train, publish and serve four hours of synthetic clicks (about two minutes), and ask for one prediction; report in build/demo/report.json
	@rm -rf build/demo
	@$(BIN)/elastic-ctr synth --hours 4 --rows 200000 --seed 1 build/demo/data 2> >(grep -v '^next: ' >&2)
	@$(BIN)/elastic-ctr local run $(DEMO) --report build/demo/report.json
	@$(BIN)/elastic-ctr local up $(DEMO) 2>build/demo/up.log || { cat build/demo/up.log >&2; exit 1; }
	@head -1 build/demo/data/20200401/03/part-00000 | cut -d' ' -f3- >build/demo/line
	@echo "asked: $$(cat build/demo/line)"
	@echo "answer: $$($(BIN)/elastic-ctr predict build/demo/line --no-clicks --json --dir build/demo/run)"
	@$(BIN)/elastic-ctr local down --dir build/demo/run
	@echo "report: build/demo/report.json; logs: build/demo/run/logs"
	@echo "next: $(BIN)/elastic-ctr local up $(DEMO)    # ask it yourself"

stream-demo: setup ## A stream whose truth drifts, learned within seconds (under three minutes); report in build/stream/report.json
	@$(BIN)/python -m bench.stream_demo

package: setup-dev ## Pack the chart into build/, for `helm install` and `helm push`
	@$(BIN)/python tools/generate.py --check
	@mkdir -p build
	@$(BIN)/python -c 'import helm_python; print(helm_python.package("charts/elastic-ctr", destination="build"))'

release: setup-dev ## Make the files of a release of HEAD in build/release: VERSION=0.1.0, KEY=key.pem signs them
	@$(RELEASE) build "$(VERSION)" $(if $(KEY),--key "$(KEY)") --images $(IMAGES) $(PYTHON_IMAGE)

verify: setup-dev ## Check build/release as a user would; PUBLIC_KEY=key.pub checks the signature, too
	@$(RELEASE) verify $(if $(PUBLIC_KEY),--public-key "$(PUBLIC_KEY)")

##@ Images and a cluster to try them in
images: ## Build the images of cube, trainer and serving as elastic-ctr/NAME:$(TAG) and print their sizes
	@# The stage of both environments, then cube and the environment with Paddle beside each other; machine code is compiled for cube alone.
	@$(BUILD) $(BASE) --file images/cube/Dockerfile --target tools . >/dev/null
	@trap wait EXIT; $(BUILD) $(BASE) --file images/trainer/Dockerfile --target environment . >/dev/null & \
	$(BUILD) $(BASE) --file images/cube/Dockerfile --tag $(IMAGES)/cube:$(TAG) . && wait $$!
	@$(BUILD) $(BASE) --build-arg CUBE_IMAGE=$(IMAGES)/cube:$(TAG) --file images/trainer/Dockerfile --tag $(IMAGES)/trainer:$(TAG) .
	@$(BUILD) --build-arg TRAINER_IMAGE=$(IMAGES)/trainer:$(TAG) --file images/serving/Dockerfile --tag $(IMAGES)/serving:$(TAG) .
	@DOCKER=$(DOCKER) images/sizes $(IMAGES) $(TAG) $(PYTHON_IMAGE)

images-before: ## Build the images of the last tag, or of the commit ELASTIC_CTR_BEFORE, as elastic-ctr/NAME:before, for `make kind-load TAG=before`
	@[ -n "$(BEFORE)" ] || { echo "no tag is before this commit: set ELASTIC_CTR_BEFORE to one whose release is upgraded" >&2; exit 2; }
	@rm -rf build/before && mkdir -p build/before && git archive $(BEFORE) | tar -x -C build/before
	@$(MAKE) -C build/before images TAG=before

test-images: setup-dev ## Test the images that `make images` built: their contents, and that every role starts
	@ELASTIC_CTR_IMAGES=$(IMAGES) ELASTIC_CTR_TAG=$(TAG) DOCKER=$(DOCKER) $(BIN)/python -m pytest -m "not nightly" tests/images

images-nightly: setup-dev tracking-image ## Test what test-images leaves out: a master's reports to MLflow
	@ELASTIC_CTR_IMAGES=$(IMAGES) ELASTIC_CTR_TAG=$(TAG) DOCKER=$(DOCKER) $(BIN)/python -m pytest -m nightly tests/images

cluster-images: ## Build the other images of the cluster tests: nginx (for machines without a registry), HDFS, policy-controller
	@$(DOCKER) build --quiet --build-arg DEBIAN_IMAGE=$(DEBIAN_IMAGE) --tag $(CLUSTER_IMAGES)/file-server:$(TAG) tests/cluster/images/file-server
	@[ -z "$(HDFS_CONTEXT)" ] || $(DOCKER) build --quiet --build-arg DEBIAN_IMAGE=$(DEBIAN_IMAGE) --tag $(CLUSTER_IMAGES)/hdfs:$(TAG) \
	  --file tests/cluster/images/hdfs/Dockerfile $(HDFS_CONTEXT)
	@[ ! -e build/tools/policy-controller ] || $(DOCKER) build --quiet --tag $(CLUSTER_IMAGES)/policy-controller:$(TAG) \
	  --file tests/cluster/images/policy-controller/Dockerfile build/tools/policy-controller

tracking-image: ## Build MLflow's image, for machines without a registry; `make kind-load` loads it, too
	@$(DOCKER) build --quiet --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) --tag $(CLUSTER_IMAGES)/tracking:$(TAG) tests/cluster/images/tracking

kind-up: ## Bring up a kind cluster of three nodes with Volcano and a metrics server
	@$(KIND_UP)

kind-load: ## Load the built images into the cluster's workers
	@for image in $(IMAGES)/{cube,trainer,serving} $(CLUSTER_IMAGES)/{file-server,tracking,hdfs,policy-controller}; do \
	  ! $(DOCKER) image inspect $$image:$(TAG) >/dev/null 2>&1 || echo $$image:$(TAG); \
	done | xargs kind load docker-image --name $(CLUSTER) --nodes "$$(tests/cluster/workers)"
	@$(DOCKER) image prune --force >/dev/null

cluster-test: setup-dev ## Test a release in the cluster of KUBECONFIG, after kind-up and kind-load; KEEP=1 keeps the release
	@ELASTIC_CTR_TAG=$(TAG) $(CLUSTER_PYTEST) -m "not nightly" $(CLUSTER_TESTS)

cluster-nightly: setup-dev ## Test in that cluster what cluster-test leaves out: gangs, autoscaling, second releases, lost pods and nodes
	@ELASTIC_CTR_TAG=$(TAG) $(CLUSTER_PYTEST) -m nightly $(CLUSTER_TESTS)

cluster-upgrade: setup-dev ## Upgrade a release of the images of images-before in that cluster to this commit's under load, and roll it back
	@ELASTIC_CTR_TAG=$(TAG) ELASTIC_CTR_BEFORE=$(BEFORE) $(CLUSTER_PYTEST) -k of_the_images_before tests/cluster/test_upgrade.py

kind-down: ## Delete the cluster
	@kind delete cluster --name $(CLUSTER)

##@ Develop
setup-dev: ## Make .venv with the packages that check and test the code, too
	@tools/setup dev

# Unit tests wait more than they compute, so more of their files run at once.
test: setup-dev build/machine-code ## Run the tests that need no cluster: unit and chart, then pipeline and contract, JOBS files at once; print the 50 slowest
	@failed=0; $(UNIT_PYTEST) -n $(UNIT_JOBS) --no-loadscope-reorder -m "not nightly" tests/unit tests/chart || failed=1; \
	$(BIN)/python -m pytest -q -n $(JOBS) --no-loadscope-reorder --durations=50 -m "not nightly" $(LONGEST) tests/pipeline tests/contract || failed=1; \
	exit $$failed

# Runs of machine code with bounds checks: which code has passed is recorded in tests/contract/bounds_checked.json, and `make test` leaves
# those runs out until it changes. pytest ends with 5 where none is left.
BOUNDS = cd tests && digests=$$(../$(BIN)/python -m contract.compiled_modules) && \
  { ../$(BIN)/python -m pytest -q $(1) ../$(LONGEST) || [ $$? = 5 ]; } && ../$(BIN)/python -m contract.compiled_modules "$$digests"

nightly: setup-dev build/machine-code ## Run the tests that `make test` leaves out: facts about the engine, each network; and machine code with bounds checks
	@$(call BOUNDS)
	@$(BIN)/python -m pytest -q -n $(JOBS) --no-loadscope-reorder --durations=50 -m nightly --ignore $(LONGEST) tests/pipeline tests/contract tests/unit tests/chart

bounds: setup-dev build/machine-code ## Run machine code with bounds checks where it has changed since the last such run, and record that it has passed
	@$(call BOUNDS,-m "not nightly")

test-unit: setup-dev build/machine-code ## Run the unit tests, which start few processes, UNIT_JOBS files at once
	@$(UNIT_PYTEST) -n $(UNIT_JOBS) --no-loadscope-reorder tests/unit

test-chart: setup-dev ## Run the tests of the rendered chart
	@$(BIN)/python -m pytest -q -n $(JOBS) --no-loadscope-reorder tests/chart

# Processes of one run share numba's cache, with the code of all roles compiled before.
build/machine-code: $(shell find python -name '*.py') requirements/dev.txt
	@export PYTHONPATH=.; $(BIN)/python images/steps/compile.py & $(BIN)/python -m elastic_ctr.cube.server.precompile 4 9; wait $$!
	@# The bytecode of tests: nine workers of pytest that begin at once would each compile all of them. A file that fails to import fails the tests.
	@$(BIN)/python -m pytest -q --collect-only tests/unit tests/chart tests/pipeline tests/contract >/dev/null || true
	@mkdir -p build && touch $@

check: setup-dev ## Lint, types, bounds of readability, layers, and whether generated files are current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python tools/house.py
	@$(BIN)/python tools/generate.py --check

format: setup-dev ## Format the code
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format -q .

generate: setup-dev ## Write the generated files: the protocols' code, the configuration reference, the chart's schema and README, the comments of settings in values.yaml
	@$(BIN)/python tools/generate.py

lock: ## Lock the requirements (needs uv): of the extras in pyproject.toml, of developers, benchmarks, the documents' site and outside clients
	@$(LOCK) --extra local --extra tables --extra tune pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(LOCK) --constraint requirements/dev.txt --extra local --extra tables pyproject.toml --output-file requirements/run.txt
	@$(LOCK) --constraint requirements/dev.txt --extra cube pyproject.toml --output-file requirements/cube.txt
	@$(LOCK) --constraint requirements/dev.txt --extra tune pyproject.toml --output-file requirements/tune.txt
	@$(LOCK) --constraint requirements/dev.txt requirements/bench.in --output-file requirements/bench.txt
	@$(LOCK) --constraint requirements/dev.txt requirements/kerberos.in --output-file requirements/kerberos.txt
	@for client in docs tritonclient kserve keras rclone; do $(LOCK) requirements/$$client.in --output-file requirements/$$client.txt; done

bench: setup-dev ## Measure and compare with Redis and FastAPI (more than an hour): build/bench/results.json and .png. QUICK=1, ONLY="cube build", ROWS="30 keys"
	@bench/setup
	@.venv-bench/bin/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(ROWS),--rows "$(ROWS)")

docs: ## Build the documents as a site with a search into build/site, in an environment of its own; a broken link or anchor fails
	@tools/docs

fuzz: setup-dev ## Give every parser a million random inputs with bounds checking on. INPUTS=10000, ONLY="cube-server"
	@cd tests && ../$(BIN)/python -m fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(ONLY),--only $(ONLY))

house: setup-dev ## Count how readable the code is, and fail above a bound
	@$(BIN)/python tools/house.py

clean: ## Remove built files, except .venv
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
