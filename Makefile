# The only door: everything that can be done to this project is a target here, and CI calls the same ones.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
PIP := $(VENV_PYTHON) -m pip --quiet --disable-pip-version-check
CONSTRAINTS := .ci/constraints.txt
DATA ?= sample
BENCH_FLAGS ?=
PROPTEST_NIGHTLY := 4096
KILL_ROUNDS := 20

RUST_SOURCES := $(shell find crates python/src -name '*.rs' -o -name 'Cargo.toml') Cargo.toml Cargo.lock
PYTHON_PACKAGE := python/Cargo.toml python/pyproject.toml $(shell find python/stratann -name '*.py' -o -name '*.pyi')

.PHONY: help demo test test-rust test-python test-sample test-bench build bench lint nightly docs clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: build $(VENV)/.tools ## Build and search two indexes, one larger than its memory (about 4 minutes, most of it compiling)
	$(VENV_PYTHON) demo/demo.py

build: ## The program, target/release/stratann
	@echo "compiling target/release/stratann (2 to 3 minutes on 2 cores the first time)"
	cargo build --release --locked --package stratann

# Compiling takes most of the time: once for tests, once for clippy, once for the Python package. Later runs compile
# what changed. A part that fails does not keep the others from running.
test: ## All that must hold before a change is merged (about 12 minutes on 2 cores the first time)
	$(MAKE) --no-print-directory --keep-going test-rust test-python test-sample test-bench lint

# The same random cases for everybody; `make nightly` draws others.
test-rust:
	PROPTEST_RNG_SEED=1 cargo test --workspace --locked --no-fail-fast

test-python: $(VENV)/.package
	$(VENV_PYTHON) -m pytest python/tests

test-sample: $(VENV)/.tools
	$(VENV_PYTHON) sample/check_sample.py

test-bench: $(VENV)/.tools
	$(VENV_PYTHON) -m pytest bench/tests

lint: ## Format and lints, without changing anything
	cargo fmt --all --check
	cargo fmt --manifest-path python/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

bench: build $(VENV)/.tools ## Compare with the peers that are installed: make bench DATA=folder BENCH_FLAGS='--metric cosine'
	$(VENV_PYTHON) bench/compare.py --data $(DATA) $(if $(filter sample,$(DATA)),--metric cosine) $(BENCH_FLAGS)

nightly: ## The long tests: many more random cases, and builds killed again and again
	PROPTEST_CASES=$(PROPTEST_NIGHTLY) cargo test --workspace --locked --lib --bins --tests -- --include-ignored
	for round in $$(seq $(KILL_ROUNDS)); do \
		echo "killed builds, round $$round of $(KILL_ROUNDS)"; \
		cargo test --quiet --locked --package stratann --test interrupted; \
	done

docs: ## API documentation, target/doc
	RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --locked --document-private-items

clean: ## Remove what make made, compiled code included
	cargo clean
	rm -rf $(VENV) python/target demo-out bench/out

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "make: $(PYTHON) cannot make virtual environments; apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What the demo, the benchmarks and their tests import.
$(VENV)/.tools: $(VENV)/.made $(CONSTRAINTS)
	$(PIP) install --constraint $(CONSTRAINTS) numpy matplotlib pytest
	@touch $@

# The Python package as a user would install it, with what its tests import.
$(VENV)/.package: $(VENV)/.tools $(RUST_SOURCES) $(PYTHON_PACKAGE)
	$(PIP) install --constraint $(CONSTRAINTS) maturin
	@echo "compiling the Python package (some minutes the first time)"
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation './python[test]'
	@touch $@
