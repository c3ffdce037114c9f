# Verbs; `make help` lists them.
SHELL := /bin/bash
BUILD ?= build
JOBS ?= $(shell nproc)
MODEL ?= models/smollm2/family.json
# Clones share what ccache has compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
# Joined files compile in half the time; UNITY=OFF for work on single ones.
UNITY ?= ON
RELEASE = cmake --preset release -DCMAKE_UNITY_BUILD=$(UNITY)
# A build folder keeps the generator it was made with.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)

.PHONY: help setup cuda-configure build models demo serve test unit test-clients test-agents soak bench lint tidy format fuzz asan tsan mutate test-bare neon cuda cuda-check cuda-architectures cuda-all gpu-test gpu-sanitize gpu-bench bundle wheel deb test-packages cluster bench-nodes clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:
	@tools/setup build

build: setup ## install what building needs, build build/droidspeak
	@mkdir -p $(BUILD)
	@$(RELEASE) -DDROIDSPEAK_TESTS=OFF > $(BUILD)/configure.log 2>&1 || (cat $(BUILD)/configure.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)

models: ## get the default family into models/
	@tools/setup models
	@python3 tools/get_models.py

demo: build models ## the whole story: full prefill, plain reuse, DroidSpeak, on real models
	@python3 tools/demo.py

serve: build models ## the server with the default family on 127.0.0.1:8080, web page at /
	@$(BUILD)/droidspeak serve --family $(MODEL) --host 127.0.0.1 --port 8080 --adapter-root families/smollm2 --min-quality 0.97

test: models ## install what is missing, build, run every test
	@tools/setup test
	@mkdir -p $(BUILD)
	@$(RELEASE) -DDROIDSPEAK_TESTS=ON > $(BUILD)/configure.log 2>&1 || (cat $(BUILD)/configure.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/run_tests $(BUILD)

unit: ## the fast unit tests only
	@tools/setup unit
	@mkdir -p $(BUILD)
	@$(RELEASE) -DDROIDSPEAK_TESTS=ON > $(BUILD)/configure.log 2>&1 || (cat $(BUILD)/configure.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) -L unit -j $(JOBS) --output-on-failure

test-clients: build models ## lm-eval and guidellm against a running server (installs torch)
	@tools/setup clients
	@.venv/bin/python -m pytest -q tests/clients/heavy

test-agents: build models ## agent frameworks, unmodified, against a running server
	@tools/setup agents
	@DROIDSPEAK_FAMILY=$(MODEL) .venv-agents/bin/python -m pytest -q tests/agents

soak: build models ## mixed load with faults on the real server for MINUTES (30)
	@python3 tests/soak/soak.py --build $(BUILD) --minutes $(or $(MINUTES),30)

bench: build models ## speed of this build, and of llama.cpp and openvino-genai beside it; SERVER=1 adds llama-server
	@tools/setup bench
	@python3 bench/compare_cpu_engines.py
	@[ -z "$(SERVER)" ] || python3 bench/compare_llama_server.py

gpu-bench: cuda-configure ## the 8B shape on the GPU, beside torch and transformers
	@cmake --build build-cuda -j $(JOBS) --target droidspeak
	@bench/gpu/run.sh build-cuda

lint: ## formatting, thread safety, sizes
	@tools/setup lint
	@tools/lint

tidy: build ## clang-tidy on what the last commit changed; ALL=1 on everything
	@tools/setup tidy
	@mkdir -p build-tidy && cmake --preset release -B build-tidy -DDROIDSPEAK_TESTS=OFF > build-tidy/configure.log 2>&1 || (cat build-tidy/configure.log; exit 1)
	@tools/tidy build-tidy $(if $(ALL),--all)

format: ## clang-format everything
	@tools/setup lint
	@git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 -i

fuzz: ## every fuzz target for 60 s
	@tools/setup sanitize
	@tools/run_fuzzers 60

asan: ## every compiled test with address and undefined behaviour sanitizers, but those that LEAVE_OUT names
	@tools/setup sanitize
	@cmake --preset asan > /dev/null && cmake --build build-asan -j $(JOBS) --target compiled_tests
	@tools/run_tests build-asan --compiled -j $(JOBS) $(if $(LEAVE_OUT),-E '^($(LEAVE_OUT))$$')

tsan: ## every compiled test with the thread sanitizer
	@tools/setup sanitize
	@cmake --preset tsan > /dev/null && cmake --build build-tsan -j $(JOBS) --target compiled_tests
	@tools/run_tests build-tsan --compiled -j $(JOBS)

mutate: ## 150 small changes of the sources, each of which some test must notice
	@tools/setup mutate
	@.venv/bin/python tools/mutate --jobs $(JOBS)

test-bare: ## make demo and make test in a fresh Debian 12 and a fresh Ubuntu 24.04 root; needs root
	@tools/setup bare
	@tools/test_bare

neon: ## the CPU operations' tests for ARM, under qemu
	@tools/check_neon

cuda-configure:
	@tools/setup cuda
	@mkdir -p build-cuda
	@cmake --preset cuda > build-cuda/configure.log 2>&1 || (cat build-cuda/configure.log; exit 1)

cuda: cuda-configure ## build with the CUDA backend into build-cuda
	@cmake --build build-cuda -j $(JOBS)

cuda-check: cuda-configure ## compile the CUDA code and its tests only, what changed SINCE a commit for all capabilities; needs nvcc, no GPU
	@cmake --build build-cuda -j $(JOBS) --target codec_cuda_test ops_cuda_test device_test
	@[ -z "$(SINCE)" ] || tools/check_architectures --jobs $(JOBS) --since $(SINCE) --seconds 240

cuda-architectures: ## compile all CUDA code for every compute capability; needs nvcc, no GPU
	@tools/setup cuda
	@tools/check_architectures --jobs $(JOBS)

cuda-all: ## build for every compute capability into build-cuda-all
	@tools/setup cuda
	@mkdir -p build-cuda-all
	@cmake --preset cuda-all > build-cuda-all/configure.log 2>&1 || (cat build-cuda-all/configure.log; exit 1)
	@cmake --build build-cuda-all -j $(JOBS) --target droidspeak
	@tools/cuda_code --all build-cuda-all/droidspeak

gpu-test: cuda-configure ## the tests that use a GPU
	@cmake --build build-cuda -j $(JOBS) --target codec_cuda_test device_test ops_cuda_test parity_test
	@ctest --test-dir build-cuda -R '^(codec_cuda_test|device_test|ops_cuda_test|parity_test)$$' --output-on-failure

gpu-sanitize: cuda-configure ## the GPU operations' tests under compute-sanitizer: memory, then races
	@cmake --build build-cuda -j $(JOBS) --target codec_cuda_test device_test ops_cuda_test
	@for tool in memcheck racecheck; do for test in codec_cuda_test ops_cuda_test device_test; do \
	  echo "$$tool $$test"; DROIDSPEAK_TEST_SECONDS=0 compute-sanitizer --tool $$tool --report-api-errors no --error-exitcode 1 build-cuda/bin/$$test --gtest_brief=1 || exit 1; \
	done; done

bundle: ## collect into .cache/bundle what a GPU machine without network lacks
	@tools/setup cuda
	@tools/bundle

wheel: build ## out/packages/droidspeak-*.whl: the program and a Python client for pip install
	@tools/setup package
	@python3 packages/wheel.py $(BUILD)

deb: build ## out/packages/droidspeak_*.deb: service, user, configuration, man page, completion
	@tools/setup package
	@python3 packages/deb.py $(BUILD)

test-packages: models ## both packages in a fresh Debian 12 and a fresh Ubuntu 24.04 root; needs root
	@rm -rf out/packages
	@$(MAKE) --no-print-directory wheel deb
	@tools/setup bare
	@tests/packages/run

cluster: build models ## three servers, Redis and HAProxy on loopback, the demo's story through them
	@tools/setup cluster
	@python3 tools/cluster.py --binary $(BUILD)/droidspeak

bench-nodes: build models ## servers in network namespaces on links of 10 Mbit/s to 25 Gbit/s, Redis and peers; needs root
	@tools/setup nodes
	@python3 bench/nodes --binary $(BUILD)/droidspeak

clean: ## remove what was built
	@rm -rf build build-asan build-tsan build-cuda build-cuda-all build-mutate build-tidy out
