# The two commands a newcomer needs are `make demo` and `make test`; `make help` lists all.
# The work is done by CMake (CMakePresets.json) and the scripts in tools/.

PRESET ?= release
BUILD  := build/$(PRESET)
# As many compilers as there are cores, but two gigabytes of memory for each.
JOBS   ?= $(shell awk -v n=$$(nproc) '/MemAvailable/ { m = int($$2 / 2e6); print m < 1 ? 1 : m < n ? m : n }' /proc/meminfo)
# Where Debian's dataset-fashion-mnist lies.
FASHION ?= /usr/share/datasets/fashion-mnist

empty :=
comma := ,
export NINJA_STATUS = [%f/%t, %es] $(empty)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

# $(call compile,TARGETS): builds them, or all.
SHELL := /bin/bash
compile = set -o pipefail; cmake --build $(BUILD) --parallel $(JOBS) $(addprefix --target ,$(1)) | tools/progress

.DEFAULT_GOAL := build
.PHONY: help setup configure build demo test soak bench format lint cuda-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing (packages, LibTorch into .venv)
	@tools/setup

configure: setup
	@[ -f $(BUILD)/build.ninja ] || cmake --preset $(PRESET) --log-level=NOTICE >/dev/null

build: configure ## build everything (PRESET=release, dev, asan, tsan, cuda)
	@$(call compile)

demo: configure ## train a ResNet-20 on Fashion-MNIST with two processes; again: go on where it stopped
	@$(call compile,hasten_cli fashion)
	@# Ctrl-C is the launcher's to handle: it saves and exits with 130, which is no fault of make's.
	@trap : INT; $(BUILD)/bin/hasten launch --num-processes 2 $(BUILD)/bin/fashion $(FASHION) || [ $$? -eq 130 ]

test: build ## build and run every test
	@ctest --test-dir $(BUILD) --parallel 2 --progress --output-on-failure --no-tests=error

soak: build ## run the tests ROUNDS times (20), or those that match ONLY, until one fails
	@ctest --test-dir $(BUILD) --parallel 2 --progress --output-on-failure --no-tests=error \
	  --repeat until-fail:$(or $(ROUNDS),20) $(if $(ONLY),-R '$(ONLY)')

bench: configure ## compare with Accelerate (ONLY=mlp,ddp_mlp,launch_latency,resnet,exact); installs it into .setup/peers
	@tools/setup peers
	@cmake --preset $(PRESET) --log-level=NOTICE -D HASTEN_BENCHMARKS=ON >/dev/null
	@$(call compile,hasten_cli benchmarks)
	@benchmarks/run.py --build $(BUILD) --peers .setup/peers/bin/python $(subst $(comma), ,$(ONLY)) >$(BUILD)/bench.jsonl
	@echo "The same as lines of JSON: $(BUILD)/bench.jsonl"

format: ## format the sources
	@tools/setup lint
	@tools/format

lint: configure ## check the format, the layers and the names
	@tools/setup lint
	@tools/format --check
	@tools/check_layers
	@tools/lint $(BUILD)

cuda-check: setup ## compile and link everything for CUDA; installs a 5 GB wheel, needs no GPU
	@tools/setup cuda
	@cmake --preset cuda --log-level=NOTICE -D CMAKE_PREFIX_PATH="$$(echo $(CURDIR)/.venv-cuda/lib/python3*/site-packages)" >/dev/null
	@$(MAKE) --no-print-directory build PRESET=cuda

clean: ## remove what was built; keeps what was installed
	@rm -rf build
