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
HOSTILE_FLAGS ?=
INDEX ?=
QUERIES ?=
CALIBRATE_FLAGS ?=
PROPTEST_NIGHTLY := 4096
KILL_ROUNDS := 20
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
CARGO_FUZZ := 0.13.2
# Of each fuzz target; all of them unless FUZZ_TARGETS names some.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
FUZZ_NIGHTLY := 20
STORM_SECONDS ?= 300
ROWS_DIR ?= target/bench-rows
# One line for each test that was left out.
LEFT_OUT := $(CURDIR)/target/left-out
BOOK := STRATANN_PROGRAM=$(CURDIR)/target/debug/stratann
PYTEST := STRATANN_LEFT_OUT=$(LEFT_OUT) PYTHONPATH=.ci $(VENV_PYTHON) -m pytest -p left_out
TESTS_OF_PYTHON := $(BOOK) $(PYTEST) python/tests

.PHONY: help demo hostile test test-build test-rust test-extension test-python test-sample test-bench test-scripts test-lab build lab wheel bench bench-recall bench-filters bench-databases bench-calibrate bench-grid bench-report bench-gpu bench-remote bench-codes gpu gpu-kit gpu-compile lint tools tools-etcd tools-s3 tools-fuzz fuzz storm-remote test-rows bench-rows bench-collections bench-payloads bench-ways nightly docs clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# Packages for Python are fetched while the program is compiled.
demo: ## Build and search two indexes, one larger than its memory
	$(MAKE) --no-print-directory --jobs 2 build $(VENV)/.tools
	$(VENV_PYTHON) demo/demo.py

build: ## The program, target/release/stratann
	@echo "compiling target/release/stratann (some minutes the first time)"
	cargo build --release --locked --package stratann

lab: ## The program of studies, target/release/stratann-lab
	@echo "compiling target/release/stratann-lab (some minutes the first time)"
	cargo build --release --locked --package stratann-lab

# A part that fails does not keep the others from running.
test: ## All that must hold before a change is merged
	@mkdir -p $(dir $(LEFT_OUT)) && rm -f $(LEFT_OUT)
	@status=0; \
	$(MAKE) --no-print-directory --keep-going --jobs 2 test-extension || status=$$?; \
	$(MAKE) --no-print-directory --keep-going test-rust || status=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs 2 --output-sync=target test-scripts lint || status=$$?; \
	.ci/left-out $(LEFT_OUT) || status=$$?; \
	exit $$status

# All that the tests need is compiled once: the program, the tests and the Python extension.
test-build:
	cargo build --workspace --exclude stratann-lab --lib --bins --tests --locked

# The same random cases for everybody; `make nightly` draws others.
test-rust: test-build
	PROPTEST_RNG_SEED=1 STRATANN_LEFT_OUT=$(LEFT_OUT) $(PYTHON) .ci/test_programs.py --workspace --exclude stratann-lab --locked
	env -u MAKEFLAGS cargo test --workspace --exclude stratann-lab --locked --doc --quiet

# The laboratory compiles the crates below it once more, with the baselines: eight minutes, so it is no part of `test`.
test-lab: test-extension ## The tests of the laboratory, of the baselines of kinds, and of the book's page about them
	PROPTEST_RNG_SEED=1 STRATANN_LEFT_OUT=$(LEFT_OUT) cargo test --package stratann-lab --locked --no-fail-fast
	PROPTEST_RNG_SEED=1 cargo test --package stratann-core --features lab --locked --lib -- gpu_ivf
	cargo build --package stratann-lab --locked
	$(BOOK) STRATANN_LAB=$(CURDIR)/target/debug/stratann-lab $(PYTEST) python/tests/test_book.py -k lab

# The package as it is here, with the extension that was compiled for the tests; `make wheel` builds one to install.
test-extension: test-build $(VENV)/.tests
	cp target/debug/lib_stratann.so python/stratann/_stratann.abi3.so
	cd python && $(CURDIR)/$(VENV)/bin/maturin pep517 write-dist-info --metadata-directory $(CURDIR)/target/wheel-metadata

test-python: test-extension
	$(TESTS_OF_PYTHON)

# The extension is there already. One after another, since all of them start servers; lints run beside them, so none of
# these compiles anything.
test-scripts:
	@status=0; \
	$(TESTS_OF_PYTHON) || status=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs 1 test-sample test-bench || status=$$?; \
	exit $$status

test-sample: $(VENV)/.tools
	$(VENV_PYTHON) sample/check_sample.py

test-bench: $(VENV)/.tools
	$(PYTEST) bench/tests

lint: $(VENV)/.tools ## Format and lints, without changing anything
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --exclude stratann-lab --all-targets --locked -- --deny warnings
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	$(VENV)/bin/ruff check .ci python bench demo sample

wheel: build $(VENV)/.tests ## The Python package with the program in it, to install where no compiler is, in target/wheels
	@echo "compiling the Python extension (some minutes the first time)"
	rm -f target/wheels/stratann-*.whl
	cd python && $(CURDIR)/$(VENV)/bin/maturin build --release --locked --out $(CURDIR)/target/wheels
	$(PYTHON) .ci/wheel.py target/wheels/stratann-*.whl target/release/stratann

bench: build $(VENV)/.tools ## Compare with the peers that are installed: make bench DATA=folder BENCH_FLAGS='--metric cosine --store'
	$(VENV_PYTHON) bench/compare.py --data $(DATA) $(if $(filter sample,$(DATA)),--metric cosine) $(BENCH_FLAGS)

bench-report: $(VENV)/.tools ## Write the tables, curves and the README's sentence on speed from bench/results
	$(VENV_PYTHON) bench/pages.py

bench-recall: build ## Recall asked for and reached, and its cost: make bench-recall DATA=folder BENCH_FLAGS='--metric cosine'
	for kind in disk-graph hybrid-ivf remote-hnsw; do \
	    target/release/stratann build $(DATA)/base.*bin --kind $$kind -o bench/out/recall-$$kind --force $(BENCH_FLAGS) \
	    && python3 bench/recall.py bench/out/recall-$$kind $(DATA)/query.*bin $(DATA)/groundtruth.ibin \
	        --stratann target/release/stratann || exit 1; \
	done

bench-filters: build $(VENV)/.tools ## Filtered search beside peers: make bench-filters DATA=folder BENCH_FLAGS='--metric cosine --store'
	$(VENV_PYTHON) bench/filters.py --data $(DATA) $(if $(filter sample,$(DATA)),--metric cosine) $(BENCH_FLAGS)

# Nine minutes for 20,000 rows on two busy cores; ROWS= takes fewer. Without BASE= the rows are those of sample/.
bench-databases: $(VENV)/.tools ## Collections beside databases: make bench-databases BASE=base.u8bin QUERIES=query.u8bin ROWS=20000
	cargo build --release --locked --lib --package stratann-python
	$(VENV_PYTHON) bench/databases.py --data $(if $(BASE),$(BASE) --queries $(QUERIES),sample --metric cosine) $(if $(ROWS),--rows $(ROWS)) $(BENCH_FLAGS)

bench-grid: build ## A grid-ivf beside faiss: make bench-grid BASE=vectors QUERIES=queries GRID_FLAGS='--metric cosine'
	bench/.venv/bin/python bench/grid.py $(BASE) $(QUERIES) $(GRID_FLAGS)

bench-gpu: lab ## Ranking codes of a gpu-ivf beside faiss: make bench-gpu BASE=vectors QUERIES=queries GPU_FLAGS='--metric cosine'
	bench/.venv/bin/python bench/gpu.py $(BASE) $(QUERIES) $(GPU_FLAGS)

bench-remote: lab ## A remote-hnsw beside hnswlib, and memory nodes: make bench-remote BASE=vectors QUERIES=queries REMOTE_FLAGS='--groundtruth truth'
	bench/.venv/bin/python bench/remote.py $(BASE) $(QUERIES) $(REMOTE_FLAGS)

bench-codes: ## Time of a code beside faiss' codes of as many bits
	bench/.venv/bin/python bench/codes.py $(CODES_FLAGS)

bench-calibrate: build ## Simulated times against real processes: make bench-calibrate INDEX=index QUERIES=queries
	$(PYTHON) bench/calibrate.py $(INDEX) $(QUERIES) $(CALIBRATE_FLAGS)

gpu-compile: bench/.venv-gpu/.made ## Compile the GPU kernels for several architectures, without a GPU; the log is in bench/results
	bench/.venv-gpu/bin/python bench/gpu_compile.py

gpu-kit: build ## Pack the program, the GPU's tests and a script in target/gpu-kit.tar.gz, for a machine with a GPU alone
	$(PYTHON) bench/gpu_kit.py

gpu: gpu-kit ## Where there is a GPU: its tests, and its speed beside this machine's threads, to bench/results
	$(PYTHON) bench/gpu_run.py --kit target/gpu-kit --results bench/results $(GPU_FLAGS)

bench/.venv-gpu/.made:
	$(PYTHON) -m venv bench/.venv-gpu
	bench/.venv-gpu/bin/python -m pip --quiet --disable-pip-version-check install 'nvidia-cuda-nvrtc-cu12>=12.9,<13'
	@touch $@

# Two minutes by default; the server runs in a memory cgroup where one can be made.
hostile: build ## Honest and hostile load against a server with a RAM budget: make hostile HOSTILE_FLAGS='--seconds 600'
	$(PYTHON) bench/hostile.py --seconds 120 $(HOSTILE_FLAGS)

# What is there already is not installed again.
tools: tools-etcd tools-s3 ## Install the servers that some tests need: etcd (by apt-get, as root) and versitygw (by Go)

tools-etcd:
	@command -v etcd >/dev/null || { apt-get update -q && apt-get install -y -q etcd-server; }

tools-s3: .tools/bin/versitygw

.tools/bin/versitygw:
	GOBIN=$(CURDIR)/.tools/bin go install $(VERSITYGW)

fuzz: tools-fuzz ## Fuzz every decoder with nightly Rust: make fuzz FUZZ_SECONDS=60 FUZZ_TARGETS='block frame'
	.ci/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

tools-fuzz: .tools/bin/cargo-fuzz

.tools/bin/cargo-fuzz:
	cargo install cargo-fuzz --locked --version $(CARGO_FUZZ) --root .tools || \
		{ echo "make: cargo-fuzz $(CARGO_FUZZ) cannot be installed; put it into .tools/bin, or leave out make fuzz" >&2; exit 1; }

test-rows: ## The slow tests of rows and collections: a thousand kills, each call failed in turn, damage everywhere
	cargo test --package stratann-node --locked -- --include-ignored --nocapture

bench-rows: ## Durable batches of rows, beside one append and fdatasync, and of points, beside bare rows: make bench-rows ROWS_DIR=folder
	cargo run --release --locked --package stratann-node --example rows -- $(ROWS_DIR)
	cargo run --release --locked --package stratann-node --example points -- $(ROWS_DIR)

# LIVE has options: kind, rows, seconds, rate, threads, recall, metric.
bench-collections: ## A collection that is written and searched at once: make bench-collections BASE=base.u8bin QUERIES=query.u8bin
	@test -n "$(BASE)" && test -n "$(QUERIES)" || { echo "name the vectors: make bench-collections BASE=… QUERIES=… [LIVE=\"rows=1000000 seconds=600\"]"; exit 2; }
	@rm -rf $(ROWS_DIR)/live
	cargo run --release --locked --package stratann-node --example live -- $(ROWS_DIR)/live $(BASE) $(QUERIES) $(LIVE)

bench-payloads: ## Changes of payloads beside upserts: make bench-payloads BASE=base.u8bin QUERIES=query.u8bin
	@test -n "$(BASE)" && test -n "$(QUERIES)" || { echo "name the vectors: make bench-payloads BASE=… QUERIES=…"; exit 2; }
	@rm -rf $(ROWS_DIR)/payloads
	cargo run --release --locked --package stratann-node --example payloads -- $(ROWS_DIR)/payloads $(BASE) $(QUERIES)

bench-ways: ## The planner of filters beside every way that it could take, by exact counters: make bench-ways WAYS_ROWS=60000
	cargo run --release --locked --package stratann-node --example ways -- $(WAYS_ROWS)

storm-remote: ## Four compute nodes insert, delete and search in one memory node: make storm-remote STORM_SECONDS=60
	STRATANN_STORM_SECONDS=$(STORM_SECONDS) cargo test --workspace --exclude stratann-lab --locked --test remote_storm -- --ignored --nocapture

nightly: wheel ## The long tests: many more random cases, builds killed again and again, every decoder fuzzed, and the wheel in an environment of its own
	PROPTEST_CASES=$(PROPTEST_NIGHTLY) cargo test --workspace --exclude stratann-lab --locked --lib --bins --tests -- --include-ignored
	cargo test --package stratann-lab --locked -- --include-ignored
	for round in $$(seq $(KILL_ROUNDS)); do \
		echo "killed builds, round $$round of $(KILL_ROUNDS)"; \
		cargo test --quiet --locked --package stratann --test interrupted; \
	done
	$(MAKE) --no-print-directory test-lab
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=$(FUZZ_NIGHTLY)
	$(PYTHON) .ci/try_wheel.py target/wheels/stratann-*.whl target/wheel-venv

docs: ## API documentation, target/doc
	RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --locked --document-private-items

clean: ## Remove what make made, compiled code included
	cargo clean
	rm -rf $(VENV) demo-out bench/out fuzz/target fuzz/corpus fuzz/artifacts python/stratann/_stratann.abi3.so

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "make: $(PYTHON) cannot make virtual environments; apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What the demo, the benchmarks, their tests and the lints use.
$(VENV)/.tools: $(VENV)/.made $(CONSTRAINTS)
	$(PIP) install --constraint $(CONSTRAINTS) numpy matplotlib pytest ruff
	@touch $@

# What the tests of the Python package import, and the package itself: the folder python/.
$(VENV)/.tests: $(VENV)/.tools python/pyproject.toml
	$(VENV_PYTHON) -c 'import tomllib; print(*tomllib.load(open("python/pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")' > $(VENV)/tests.txt
	$(PIP) install --constraint $(CONSTRAINTS) maturin --requirement $(VENV)/tests.txt
	$(PIP) uninstall --yes stratann 2>/dev/null
	echo $(CURDIR)/python > "$$($(VENV_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stratann.pth"
	@touch $@
