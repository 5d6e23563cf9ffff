# gristmill's commands; `make` alone lists them. Needed: Python 3.11 or newer, a Rust toolchain with rustfmt and
# clippy, and a C compiler. All else comes from the package registries and goes into .venv, target and dist.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The first of these that is new enough. Set PYTHON=... to choose.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# PyO3 looks for an interpreter; a conda environment beside .venv would only confuse maturin.
MATURIN = env -u CONDA_PREFIX VIRTUAL_ENV="$(abspath $(VENV))" $(BIN)/maturin
CLIPPY = PYO3_PYTHON="$(abspath $(BIN)/python)" cargo clippy --locked --all-targets
CORE := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs')
export PIP_QUIET := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help: ## List these commands
	@echo "gristmill: gzipped JSONL shards in, packed batches of token ids out"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(VENV)/.ready-demo ## Build, then run the main job on real text and show a packed row
	$(call say,Real text to packed rows: demo-data)
	@$(BIN)/gristmill demo --folder demo-data

.PHONY: test
test: lint test-rust test-python ## Everything that must pass: formatting, lints, types, Rust and Python tests
	$(call say,All passed)

.PHONY: lint
lint: $(VENV)/.ready-test ## Formatting, lints and types, of Rust and Python
	$(call say,Rust: formatting and lints without and with Python)
	cargo fmt --check
	$(CLIPPY) -- -D warnings
	$(CLIPPY) --features python -- -D warnings
	$(call say,Python: formatting and lints and types and the core's stub)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest gristmill._core

.PHONY: test-rust
test-rust: ## Tests of the Rust core, which needs no Python
	$(call say,Rust tests)
	cargo test --locked

.PHONY: test-python
test-python: $(VENV)/.ready-test ## Tests of the Python package
	$(call say,Python tests)
	$(BIN)/python -m pytest

.PHONY: loom
loom: ## Check the ring and its workers under every interleaving that loom can think of
	$(call say,Model check of the ring and its workers)
	LOOM_MAX_PREEMPTIONS=3 cargo test --locked --lib --features loom loom_

.PHONY: bench
bench: $(VENV)/.ready-bench ## Side by side with the pipelines of today, on the demo's text
	$(call say,Tokens a second side by side)
	@$(BIN)/gristmill bench --latency --output target/bench $(BENCH)
	@echo "All that was measured, and pictures of it, are in target/bench."

.PHONY: bench-encoder
bench-encoder: $(VENV)/.ready-demo ## The encoder side by side with its peers: first and second pass, one thread
	$(call say,Megabytes of text a second side by side)
	@$(BIN)/python benches/encoders $(BENCH)

.PHONY: wheel
wheel: $(BIN)/maturin ## Build a wheel into dist/ and try it in a fresh environment
	$(call say,Wheel)
	rm -rf dist target/wheel-check
	$(MATURIN) build --release --locked --out dist
	$(call say,The wheel in a fresh environment)
	$(PYTHON) -m venv target/wheel-check
	target/wheel-check/bin/python -m pip install "$$(ls dist/*.whl)[demo]"
	cd target/wheel-check && bin/gristmill demo --folder demo-data --megabytes 2
	@ls -l dist

.PHONY: clean
clean: ## Remove all that these commands made
	rm -rf $(VENV) target dist demo-data .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/gristmill/_core*.so

# The environment: a fresh pip, since the one that Python brings may be too old for today's wheels, and maturin.
$(BIN)/maturin: pyproject.toml
	$(call say,A Python environment in $(VENV))
	@command -v cargo >/dev/null || { echo "cargo is not to be found: install Rust from https://rustup.rs"; exit 1; }
	@test -n "$(PYTHON)" || { echo "no Python of 3.11 or newer is to be found: name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		> $(VENV)/build-requires.txt
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -r $(VENV)/build-requires.txt
	@touch $@

# The package, its extension built in release mode. Python sources are used in place.
$(VENV)/.built: $(BIN)/maturin $(CORE)
	$(call say,The package in release mode; the first build takes some minutes)
	$(MATURIN) develop --release --locked
	@touch $@

# What one of the package's extras asks for. An extra may name another one, so the package must be there already.
$(VENV)/.ready-%: $(VENV)/.built
	$(call say,What \"$*\" needs beside the package)
	$(BIN)/python -m pip install "gristmill[$*]"
	@touch $@
