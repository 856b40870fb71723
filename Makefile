# Every target does its own set-up; `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup train test test-clusters test-oldest-torch test-sanitize test-address test-thread fuzz wheels test-aarch64 release lint format proto drawings docs bench bench-check clean

BIN := .venv/bin
PYTHON_SOURCES := src harness tests benchmarks examples tools
CXX_SOURCES = $(shell find native bpf harness tests/native tests/fuzz/native benchmarks/ours benchmarks/native -name "*.cc" -o -name "*.h" -o -name "*.c")

help: ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## System packages where allowed, .venv with pinned packages, native build; quick when nothing changed
	@tools/setup.sh

train: setup ## Train a small language model on this machine's Python sources
	@$(BIN)/luwu train

test: setup ## Native unit tests, then the Python tests
	@tools/native_tests.sh native
	@tools/python_tests.sh

test-clusters: setup ## Jobs of a real Slurm and Ray on this machine that lose workers and nodes; installs both the first time
	@tools/cluster_tests.sh

test-oldest-torch: setup ## The Python tests with the oldest torch that is allowed; fetches some gigabytes the first time
	@tools/oldest_torch.sh

test-sanitize: test-address test-thread ## Native unit tests under AddressSanitizer with UBSan, those with threads under ThreadSanitizer

test-address: setup
	@tools/native_tests.sh asan address,undefined

test-thread: setup
	@tools/native_tests.sh tsan thread

fuzz: setup ## Ten million random packets, as many in the kernel, two million hellos and frames; then a minute for each parser's fuzz target
	@LUWU_FUZZ_PACKETS=$${LUWU_FUZZ_PACKETS:-10000000} tools/native_tests.sh asan address,undefined packets xdp_fuzz tcp_strangers
	@$(BIN)/python tools/fuzz.py

wheels: ## Wheels that need no compiler into dist/, for Linux with glibc 2.28 or later; ARCHITECTURE=aarch64 for another
	@tools/wheels.sh $(ARCHITECTURE)

test-aarch64: setup ## The wheel for ARM under qemu: native unit tests, its module, a short training; fetches some 300 MB the first time
	@tools/aarch64_tests.sh

release: ## All wheels and the source distribution, built and checked; tags and uploads nothing
	@tools/release.sh

lint: setup ## ruff, mypy, import-linter, clang-format and the order of native/'s folders, changing nothing
	@$(BIN)/ruff check $(wildcard $(PYTHON_SOURCES))
	@$(BIN)/ruff format --check $(wildcard $(PYTHON_SOURCES))
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	@$(BIN)/python tools/include_order.py

format: setup ## Rewrite the sources as ruff and clang-format want them
	@$(BIN)/ruff check --fix $(wildcard $(PYTHON_SOURCES))
	@$(BIN)/ruff format $(wildcard $(PYTHON_SOURCES))
	@$(BIN)/clang-format -i $(CXX_SOURCES)

proto: setup ## Write the control plane's Python modules from control.proto anew
	@tools/proto.sh

drawings: ## Draw docs/*.svg from docs/*.dot; needs graphviz
	@python3 tools/drawings.py

docs: setup ## The documentation site, into build/docs; works without a network
	@tools/docs.sh

bench: setup ## Run every benchmark beside its peers; results go to benchmarks/results
	@$(BIN)/python tools/bench.py

bench-check: setup ## Run every benchmark at its smallest size, for function alone, without the peers' environment
	@$(BIN)/python tools/bench_check.py

clean: ## Remove everything that was built here, the environments too
	rm -rf build dist .venv .mypy_cache .import_linter_cache .pytest_cache .ruff_cache .hypothesis src/luwu/_native.pyi
