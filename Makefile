# Everything a newcomer needs: `make qualify` and `make test` set themselves up.
PYTHON ?= python3
# Where pip's configured indexes lack PyTorch's CPU build, name an index that has it:
#   make qualify TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
RELEASE ?= images/ds4-cpu
# What `make qualify-gpu` qualifies, with which vLLM; kernels are compiled at the first start, which needs nvcc.
GPU_RELEASE ?= images/ds4-h200
GPU_VLLM ?= vllm==0.26.0
IMAGE_RELEASE ?= images/ds4-cpu-image
# What `make publish` publishes, where to, by which policy, and whose key signs it (made where it is not there).
BUNDLE ?= $(lastword $(sort $(wildcard bundles/$(notdir $(IMAGE_RELEASE))-2*)))
TAG ?= 0.1.0
TO ?= 127.0.0.1:5125/release/$(notdir $(IMAGE_RELEASE)):$(TAG)
PUBLICATION ?= $(IMAGE_RELEASE)/publication.yaml
KEY ?= .cache/release.key

VENV := .venv
SERVING := .venv-serving
GPU := .venv-gpu
CONTRACTS := .venv-contracts
KERNEL_SOURCES := $(shell find kernels -type f \( -name '*.py' -o -name '*.c' -o -name '*.cu' -o -name '*.toml' \) -not -path '*/build/*')
# Runs a command with a Docker engine and a registry on 127.0.0.1; starts, and stops, what is not there. The last command
# of each list is exec'd: a signal reaches it at once.
WITH_ENGINE := $(VENV)/bin/python -m qualify.images.local_engine --
WHEELS := .cache/wheels
CUDA_WHEELS := .cache/wheels-cuda
# The Python of the CUDA image.
CUDA_PYTHON ?= 3.12
# Tests wait for servers more than they compute: more workers than cores.
WORKERS ?= 4
TEST_ARGS ?=
QUALIFY_ARGS ?=
PUBLISH_ARGS ?=
CONTRACTS_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help simulate install install-serving install-engine qualify qualify-gpu wheels wheels-cuda base-image image qualify-image publish test test-slow test-browser test-registry test-engine test-images contracts-released bench bench-judge bench-client bench-kernels lint format clean field-cases

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

install: $(VENV)/.installed  ## Install the harness into .venv

install-serving: $(SERVING)/.installed  ## Install vLLM for the CPU, and kernels/, into .venv-serving

qualify: install install-serving  ## Qualify the embedded release (no GPU, no Docker)
	$(VENV)/bin/qualify run $(RELEASE)

qualify-gpu: install $(GPU)/.installed  ## Qualify a release on this machine's graphics card (an H200, CUDA with nvcc)
	$(VENV)/bin/qualify run $(GPU_RELEASE) $(QUALIFY_ARGS)

wheels: $(WHEELS)/.downloaded  ## Download the wheels that the CPU image is made of

wheels-cuda: $(CUDA_WHEELS)/.downloaded  ## Download the wheels that images/ds4-stride-fix adds to a CUDA image

install-engine:  ## Install a Docker engine and a registry where they are missing (Debian, as root)
	images/base/install-engine

base-image: install  ## Make the CPU image's base without any image registry (needs root)
	$(WITH_ENGINE) images/base/make

image: install wheels  ## Lock IMAGE_RELEASE, build its image and push it to the staging registry
	$(WITH_ENGINE) sh -ec 'images/base/make; $(VENV)/bin/qualify lock $(IMAGE_RELEASE); exec $(VENV)/bin/qualify image $(IMAGE_RELEASE)'

qualify-image: install wheels  ## The whole run in containers: lock, build, inspect, serve three ways, judge
	$(WITH_ENGINE) sh -ec 'images/base/make; $(VENV)/bin/qualify lock $(IMAGE_RELEASE); exec $(VENV)/bin/qualify run $(IMAGE_RELEASE) $(QUALIFY_ARGS)'

# Signing exits as the verdict says; publishing then refuses what is not qualified, and says why.
publish: install $(KEY)  ## Sign the newest bundle of IMAGE_RELEASE and promote its image to TO
	@test -n "$(BUNDLE)" || { echo "There is no bundle of $(IMAGE_RELEASE); make one: make qualify-image"; exit 2; }
	$(WITH_ENGINE) sh -ec '$(VENV)/bin/qualify sign $(BUNDLE) --key $(KEY) || true; \
	    exec $(VENV)/bin/qualify publish $(BUNDLE) --key $(KEY).pub --to $(TO) $(if $(wildcard $(PUBLICATION)),--policy $(PUBLICATION)) $(PUBLISH_ARGS)'

test: install install-serving $(CONTRACTS)/.installed  ## Run the tests (default ones; the slow ones: make test-slow)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow and not browser" --ignore tests/kernels $(TEST_ARGS)
	$(SERVING)/bin/python -m pytest -m "not slow" tests/kernels --ignore tests/kernels/c128a $(TEST_ARGS)
	PYTHONPATH=kernels $(CONTRACTS)/bin/python -m pytest --confcutdir tests/kernels/c128a tests/kernels/c128a $(TEST_ARGS)

test-slow: install install-serving  ## Run the long end-to-end tests, on a real server and on failing ones
	$(VENV)/bin/python -m pytest -n 2 --dist loadscope -m "slow and not docker" --ignore tests/kernels $(TEST_ARGS)

test-browser: $(VENV)/.browser  ## Look at the HTML reports of real runs in a browser (needs Chromium)
	$(VENV)/bin/python -m pytest -m browser tests/reporting/html $(TEST_ARGS)

test-registry: install  ## Run the tests on a real registry (needs docker-registry, no Docker)
	$(VENV)/bin/python -m pytest -m docker tests/registry $(TEST_ARGS)

test-engine: install  ## Run the tests of containers and publication on a real engine and registry, without vLLM
	$(WITH_ENGINE) sh -ec 'images/base/make; exec $(VENV)/bin/python -m pytest -m docker --ignore tests/kernels --ignore tests/images/test_real_release.py $(TEST_ARGS)'

test-images: install wheels  ## Run the tests on a real Docker engine and registry (needs root where none is there)
	$(WITH_ENGINE) sh -ec 'images/base/make; exec $(VENV)/bin/python -m pytest -m docker --ignore tests/kernels $(TEST_ARGS)'

contracts-released: $(CONTRACTS)/.installed  ## Put the metadata builders of released vLLM wheels through the contract
	PYTHONPATH=kernels $(CONTRACTS)/bin/python -m ds4_kernels.contracts.released $(CONTRACTS_ARGS)

bench: bench-judge  ## Run the benchmarks that need no GPU

bench-judge: install  ## Time and memory of judging a million positions
	$(VENV)/bin/python -m qualify.bench.judge $(BENCH_ARGS)

bench-client: install install-serving .cache/bench/guidellm/.installed .cache/bench/aiperf/.installed  ## CPU and memory of our client beside vllm bench serve, guidellm and aiperf
	$(VENV)/bin/python -m qualify.bench.volume
	$(VENV)/bin/python -m qualify.bench.client $(BENCH_ARGS)

field-cases: install  ## Write docs/field-cases.md, the table of what is caught (make test-slow runs each row)
	$(VENV)/bin/python -m tests.fieldcases.table docs/field-cases.md

simulate: install  ## Judge recorded and simulated runs; writes docs/judgement.md and docs/figures
	$(VENV)/bin/python -m qualify.simulate

bench-kernels:  ## Time the metadata kernels against the installed vLLM's (needs a GPU; PYTHON's torch, Triton, vLLM)
	PYTHONPATH=kernels $(PYTHON) -m ds4_kernels.c128a.build_cuda
	PYTHONPATH=kernels $(PYTHON) -m ds4_kernels.bench $(BENCH_ARGS)

lint: install  ## ruff check, ruff format --check, types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: install  ## Format the code and fix what ruff can fix
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

clean:  ## Remove environments, caches and made models (bundles are kept)
	rm -rf $(VENV) $(SERVING) $(GPU) $(CONTRACTS) .cache models build kernels/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(KEY): | $(VENV)/.installed
	@mkdir -p $(@D)
	$(VENV)/bin/qualify keygen $@

$(VENV)/.installed: requirements/harness.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	    { echo "Python 3.11 or 3.12 is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/harness.lock
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.browser: requirements/browser.lock $(VENV)/.installed
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/browser.lock
	@touch $@

# The serving environment is made anew only when its lock changes; kernels/ alone is reinstalled when it changes.
$(SERVING)/.locked: requirements/serving-cpu.lock
	@echo "Installing vLLM for the CPU (about 600 MB of downloads) into $(SERVING) ..."
	$(PYTHON) -m venv --clear $(SERVING)
	@$(SERVING)/bin/pip install --quiet --disable-pip-version-check --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    -r requirements/serving-cpu.lock || { \
	    echo "The serving environment could not be installed. If torch's +cpu build was not found, pip's indexes lack it:"; \
	    echo "  make $(MAKECMDGOALS) TORCH_INDEX=https://download.pytorch.org/whl/cpu"; exit 4; }
	@touch $@

$(SERVING)/.installed: $(SERVING)/.locked $(KERNEL_SOURCES)
	$(SERVING)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall ./kernels
	@touch $@

# An environment that already serves may be used instead: link it to .venv-gpu, with pip and a vLLM in it.
$(GPU)/.installed: $(KERNEL_SOURCES)
	test -x $(GPU)/bin/python || $(PYTHON) -m venv $(GPU)
	$(GPU)/bin/python -c 'import vllm' 2>/dev/null || $(GPU)/bin/python -m pip install --quiet --disable-pip-version-check $(GPU_VLLM)
	$(GPU)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./kernels
	@touch $@

$(CONTRACTS)/.installed: requirements/contracts.lock
	$(PYTHON) -m venv --clear $(CONTRACTS)
	@$(CONTRACTS)/bin/pip install --quiet --disable-pip-version-check --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    -r requirements/contracts.lock || { \
	    echo "The contracts environment could not be installed. If torch's +cpu build was not found, pip's indexes lack it:"; \
	    echo "  make $(MAKECMDGOALS) TORCH_INDEX=https://download.pytorch.org/whl/cpu"; exit 4; }
	@touch $@

# Load generators to measure beside ours. One that cannot be installed is said so in the table.
.cache/bench/%/.installed: requirements/bench-%.lock
	$(PYTHON) -m venv --clear .cache/bench/$*
	@.cache/bench/$*/bin/pip install --quiet --disable-pip-version-check --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    -r $< && touch $@ || { rm -rf .cache/bench/$*; echo "$* could not be installed and is left out."; }

# For the Python of the base image, whatever Python this machine has.
$(WHEELS)/.downloaded: requirements/serving-cpu.lock
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	@$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --dest $(WHEELS) --requirement requirements/serving-cpu.lock || { \
	    echo "The wheels could not be downloaded. If torch's +cpu build was not found, pip's indexes lack it:"; \
	    echo "  make $(MAKECMDGOALS) TORCH_INDEX=https://download.pytorch.org/whl/cpu"; exit 4; }
	@touch $@

$(CUDA_WHEELS)/.downloaded: requirements/cuda-image.lock
	rm -rf $(CUDA_WHEELS) && mkdir -p $(CUDA_WHEELS)
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version $(CUDA_PYTHON) \
	    --dest $(CUDA_WHEELS) --requirement $<
	@touch $@
