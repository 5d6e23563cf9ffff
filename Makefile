# gristmill's commands; `make` alone lists them. Needed: Python 3.11 or newer with venv, a Rust toolchain with rustfmt
# and clippy, and a C compiler. All else comes from the package registries and goes into .venv, target and dist.

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
CLIPPY_LIB = PYO3_PYTHON="$(abspath $(BIN)/python)" cargo clippy --locked --lib
CLIPPY = $(CLIPPY_LIB) --workspace --all-targets
COMMIT = $(shell git describe --always --dirty --abbrev=12 --match= 2>/dev/null)
# On Linux, Zig's linker binds to the symbols of an old glibc, whatever the one of this system is.
ifeq ($(shell uname -s),Linux)
WHEEL_LEVEL := manylinux_2_17_$(shell uname -m)
WHEEL_TARGET := $(shell uname -m)-unknown-linux-gnu
WHEEL_OPTIONS = --zig --compatibility manylinux_2_17 --target $(WHEEL_TARGET)
# Zig would link an unwinder of its own into it, which crashes when CPython ends a thread: see docs/decisions/.
WHEEL_ENV = CARGO_TARGET_$(shell echo $(WHEEL_TARGET) | tr a-z- A-Z_)_RUSTFLAGS="-C link-arg=$$(cc -print-file-name=libgcc_s.so.1)"
endif
# Reference data that is no part of the project: docs/testing.md.
SHARED := $(or $(GRISTMILL_SHARED),../shared)
CORE := Cargo.toml Cargo.lock pyproject.toml $(wildcard crates/*/Cargo.toml) $(wildcard crates/*/build.rs) $(shell find rust crates/*/src -name '*.rs' -o -name '*.c')
export PIP_QUIET := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help: ## List these commands
	@echo "gristmill turns raw training data into the batches that language models are trained on"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { sub("%", "NAME", $$1); printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Rarely needed, see CONTRIBUTING.md:" $$(sed -n 's/^\([a-z0-9-]*\):.*#- .*/\1/p' $(firstword $(MAKEFILE_LIST)))

.PHONY: demo
demo: $(VENV)/.ready-demo ## Build, then run the main job on real text and show a packed row
	$(call say,Real text to packed rows: demo-data)
	@$(BIN)/gristmill demo --folder demo-data

.PHONY: dev
dev: $(VENV)/.dev ## Build without optimisation, with what the tests of the core need: CONTRIBUTING.md

.PHONY: test
test: ## Everything that must pass: formatting, lints, types, Rust and Python tests
	@# The extension is one unit of code generation, so that one core builds it, and the other builds the Rust tests.
	@$(MAKE) --jobs 2 $(VENV)/.ready-test test-rust
	@$(MAKE) lint test-python
	$(call say,All passed)

.PHONY: lint
lint: $(VENV)/.ready-test ## Formatting, lints and types, of Rust and Python
	$(call say,Rust: formatting, lints without and with Python and of the models, links of the documentation)
	cargo fmt --all --check
	$(CLIPPY) -- -D warnings
	$(CLIPPY_LIB) --features python -- -D warnings
	$(CLIPPY_LIB) --features loom --tests -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
	$(call say,Python: imports and errors and plain words and formatting and lints and types and the core's stub)
	$(BIN)/python tests/support/layers.py
	$(BIN)/python tests/support/error_texts.py
	$(BIN)/python tests/support/plain_words.py
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest gristmill._core

.PHONY: test-rust
test-rust: ## Tests of the Rust crates, which need no Python
	$(call say,Rust tests)
	cargo test --locked --workspace $(if $(wildcard $(SHARED)/families.json),-- --include-ignored)

# Natively, CI runs them on a machine of that kind.
.PHONY: test-arm
test-arm: TESTS ?= --workspace --lib
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER = aarch64-linux-gnu-gcc
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER = qemu-aarch64 -L /usr/aarch64-linux-gnu
test-arm: #- Rust tests, TESTS= (--workspace --lib), on an emulated aarch64; says which packages of Debian it needs
	$(call say,Rust tests on an emulated aarch64)
	@{ command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; } >/dev/null || { echo "no cross compiler or no emulator: \
		apt-get install g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user, \
		and rustup target add aarch64-unknown-linux-gnu"; exit 1; }
	cargo test --locked --target aarch64-unknown-linux-gnu $(TESTS)

.PHONY: test-python
test-python: $(VENV)/.ready-test ## Tests of the Python package
	$(call say,Python tests)
	$(BIN)/python -m pytest

.PHONY: test-fast
test-fast: $(VENV)/.ready-test ## The quick ones among the Python tests, while working
	$(BIN)/python -m pytest -q -m "not slow"

# tests/environments.toml lists them.
test-%: $(VENV)/.ready-test ## The tests beside another program, such as maxtext, in an environment in target; make test-list lists them
	$(call say,$*)
	$(BIN)/python tests/support/environments.py $*

# The wheel holds for all versions of Python, so it is built once. The environments take 1 GB each.
.PHONY: test-matrix
test-matrix: wheel #- The quick Python tests with Python 3.11 to 3.14 and JAX 0.10 to 0.12, as far as they are here
	$(call say,Versions of Python and JAX and Grain)
	$(BIN)/python tests/version_matrix.py dist/*.whl $(MATRIX)

.PHONY: loom
loom: #- Model-check the ring and its workers with loom, up to a bound of preemptions
	$(call say,Model check of the ring and its workers)
	LOOM_MAX_PREEMPTIONS=3 cargo test --locked --lib --features loom loom_

.PHONY: fuzz
fuzz: CASES ?= 10000
fuzz: $(VENV)/.ready-test ## Mutated shards, JSON, filters, tokenizers, states and arguments, CASES= of each (10000)
	$(call say,Gzip and Zstandard and JSON lines)
	PROPTEST_CASES=$(CASES) cargo test --locked --test read mutated_
	PROPTEST_CASES=$(CASES) cargo test --locked -p gristmill-json
	$(BIN)/python tests/rust/read/json_rule.py --cases $(CASES) --seed 1 > target/json_rule.jsonl
	GRISTMILL_JSON_RULE="$(abspath target/json_rule.jsonl)" cargo test --locked -p gristmill-json same_rule_as_python
	$(call say,Filters)
	PROPTEST_CASES=$(CASES) cargo test --locked --lib format::keep
	GRISTMILL_CASES=$(CASES) $(BIN)/python -m pytest -s tests/python/unit/test_filters.py -k random
	GRISTMILL_CASES=$$(($(CASES) / 100)) $(BIN)/python -m pytest tests/python/stream/test_joins_at_random.py
	$(call say,Images)
	PROPTEST_CASES=$(CASES) cargo test --locked --package gristmill-images
	GRISTMILL_CASES=$(CASES) $(BIN)/python -m pytest -s tests/python/images -k mutated
	$(call say,tokenizer.json and texts)
	GRISTMILL_CASES=$(CASES) cargo test --locked --package gristmill-encoder --test exactness -- damaged:: random:: --nocapture
	$(call say,States and arguments)
	GRISTMILL_CASES=$(CASES) $(BIN)/python -m pytest -s tests/python/stream/test_fuzz.py

.PHONY: soak
soak: MINUTES ?= 5
soak: $(VENV)/.ready-test ## Memory over MINUTES= of an endless stream (5), of hostile shards, and 100 kills
	$(call say,An endless stream for $(MINUTES) minutes)
	$(BIN)/python benches/soak.py stream --minutes $(MINUTES)
	$(call say,Hostile shards; they take some GB of TMPDIR)
	$(BIN)/python benches/soak.py hostile
	$(call say,A window of 10000 large photographs; they take some GB of TMPDIR)
	$(BIN)/python benches/soak.py images
	$(call say,A run that is killed 100 times)
	GRISTMILL_KILLS=100 $(BIN)/python -m pytest tests/python/stream/test_faults.py -k kills

# torch's wheels take 6 GB, so they have a folder of their own.
.PHONY: bench-images
bench-images: $(VENV)/.ready-demo #- Images a second beside Pillow, torchvision and Energon; LOADERS=1 installs the last two
	$(call say,Decoding and resizing beside Pillow)
	$(BIN)/python -m pip install -q matplotlib
	$(BIN)/python benches/images.py
	$(call say,Loaders of one folder)
	@if [ -n "$(LOADERS)" ]; then $(PYTHON) -m venv target/loaders && \
		target/loaders/bin/python -m pip install -q torch torchvision megatron-energon; fi
	$(BIN)/python benches/image_loaders.py

# The sanitizers come with a nightly toolchain; --target keeps build scripts and procedural macros out of them.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: sanitize
sanitize: #- The Rust tests under AddressSanitizer; needs a nightly toolchain
	$(call say,AddressSanitizer)
	ASAN_OPTIONS=allocator_may_return_null=1 RUSTFLAGS="-Zsanitizer=address" PROPTEST_CASES=32 cargo +nightly test --locked --target $(HOST) \
		--target-dir target/sanitize-address --workspace --lib --tests

.PHONY: deny
deny: CHECK ?= advisories licenses bans sources
deny: #- Licences, security advisories and sources of all crates; needs cargo-deny, and the network for advisories
	$(call say,Crates)
	cargo deny --locked check $(CHECK)

.PHONY: bench
bench: $(VENV)/.ready-bench ## Side by side with the pipelines of today, on the demo's text
	$(call say,Tokens a second side by side)
	@$(BIN)/gristmill bench --latency --output target/bench $(BENCH)
	@echo "All that was measured, and charts of it, are in target/bench."

.PHONY: docs
docs: $(VENV)/.ready-docs ## Build the documentation into target/site; a warning is an error
	$(call say,Documentation)
	$(BIN)/zensical build --strict
	@echo "Open target/site/index.html"

.PHONY: options
options: $(VENV)/.built #- Write the tables of docs/options.md from the table of arguments
	PYTHONPATH=tests/support $(BIN)/python -m options_page

.PHONY: bench-encoder
bench-encoder: $(VENV)/.ready-demo ## The encoder side by side with its peers: first and second pass, one thread
	$(call say,Megabytes of text a second side by side)
	@$(BIN)/python benches/encoders $(BENCH)

.PHONY: wheel
wheel: $(VENV)/.ready-wheel-tools ## Build a portable wheel into dist/, check it, and try it in a fresh environment
	$(call say,Wheel $(WHEEL_LEVEL))
	rm -rf dist/*.whl target/wheel-check
	$(WHEEL_ENV) GRISTMILL_COMMIT="$(COMMIT)" PATH="$(abspath $(BIN)):$$PATH" \
		$(MATURIN) build --release --locked $(WHEEL_OPTIONS) --out dist
	$(if $(WHEEL_LEVEL),@$(BIN)/auditwheel show dist/*.whl | tee target/auditwheel.txt)
	$(if $(WHEEL_LEVEL),@grep -q '"$(WHEEL_LEVEL)"' target/auditwheel.txt || { echo "it needs a newer glibc than $(WHEEL_LEVEL) has"; exit 1; })
	$(BIN)/twine check --strict dist/*.whl
	$(call say,The bill of materials in the wheel)
	rm -rf target/sbom && mkdir -p target/sbom
	cd target/sbom && $(abspath $(BIN))/python -m zipfile -e ../../dist/*.whl wheel
	cp target/sbom/wheel/*.dist-info/sboms/gristmill.cyclonedx.json "target/sbom/$$(basename dist/*.whl .whl).cyclonedx.json"
	$(call say,The wheel in a fresh environment)
	$(PYTHON) -m venv target/wheel-check
	target/wheel-check/bin/python -m pip install "$$(ls dist/*.whl)[demo]"
	cd target/wheel-check && bin/gristmill --version && bin/gristmill demo --folder demo-data --megabytes 2
	cd target/wheel-check && bin/python ../../tests/support/exit_program.py demo-data/tokenizer
	@ls -l dist

.PHONY: sdist
sdist: $(VENV)/.ready-wheel-tools ## Build a source distribution into dist/, and install it in a fresh environment
	$(call say,Source distribution)
	rm -rf dist/*.tar.gz target/sdist-check
	$(MATURIN) sdist --out dist
	$(BIN)/twine check --strict dist/*.tar.gz
	$(call say,The source distribution in a fresh environment)
	$(PYTHON) -m venv target/sdist-check
	CARGO_TARGET_DIR="$(abspath target/sdist)" CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		target/sdist-check/bin/python -m pip install "$$(ls dist/*.tar.gz)[demo]"
	cd target/sdist-check && bin/gristmill --version && bin/gristmill demo --folder demo-data --megabytes 1

# Its crates come from the archive alone: there is no network for cargo, and no crate of an earlier build.
.PHONY: sdist-vendored
sdist-vendored: $(BIN)/maturin #- Build one with all crates into target/vendored, and install it without a network for cargo
	$(call say,Source distribution with all crates)
	rm -rf target/vendored target/vendored-check
	$(MATURIN) sdist --out target/vendored/plain
	$(BIN)/python .ci/vendored_sdist.py target/vendored/plain/*.tar.gz \
		"target/vendored/$$(basename target/vendored/plain/*.tar.gz .tar.gz)-vendored.tar.gz"
	rm -rf target/vendored/plain
	$(call say,The source distribution with all crates in a fresh environment)
	$(PYTHON) -m venv target/vendored-check
	CARGO_HOME="$(abspath target/vendored-check/cargo)" CARGO_TARGET_DIR="$(abspath target/vendored-check/target)" \
		CARGO_NET_OFFLINE=true CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 target/vendored-check/bin/python -m pip install \
		"$$(ls target/vendored/*.tar.gz)[demo]"
	cd target/vendored-check && bin/gristmill --version && bin/gristmill demo --folder demo-data --megabytes 1

# By the build that users get: a certificate names its commit and version.
.PHONY: certificates
certificates: TOKENIZERS ?= target/wheel-check/demo-data/tokenizer/tokenizer.json
certificates: DOCUMENTS ?= 10000
certificates: #- Certificates of TOKENIZERS=, on DOCUMENTS= texts, by the wheel that `make wheel` has tried
	$(call say,Certificates)
	target/wheel-check/bin/python -m pip install "gristmill[certify]"
	rm -rf target/certificates && mkdir -p target/certificates
	@number=0; for file in $(TOKENIZERS); do number=$$((number + 1)); \
		target/wheel-check/bin/gristmill certify "$$file" --documents $(DOCUMENTS) \
			--output "target/certificates/tokenizer-$$number.json"; \
		target/wheel-check/bin/gristmill certify "$$file" --check "target/certificates/tokenizer-$$number.json"; done

.PHONY: release
release: #- What the release workflow does but to test, attest and publish, with a log in target/release.md
	.ci/release

.PHONY: licenses
licenses: ## Gather the licences of all that the wheel holds into THIRD_PARTY_LICENSES.md
	@command -v cargo-about >/dev/null || { echo "cargo-about not found: cargo install cargo-about --locked"; exit 1; }
	cargo about generate --features python --locked --fail about.hbs --output-file THIRD_PARTY_LICENSES.md

.PHONY: clean
clean: ## Remove all that these commands made
	rm -rf $(VENV) target dist demo-data .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/gristmill/_core*.so

# The environment: a fresh pip, since the one that Python brings may be too old for today's wheels, and maturin.
$(BIN)/maturin: pyproject.toml
	$(call say,A Python environment in $(VENV))
	@command -v cargo >/dev/null || { echo "cargo not found: install Rust from https://rustup.rs"; exit 1; }
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: name one with PYTHON=..."; exit 1; }
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
	@rm -f $(VENV)/.dev
	@touch $@

# The same in the profile of Rust tests, which share its crates: minutes sooner, and many times slower at work.
$(VENV)/.dev: $(BIN)/maturin $(CORE)
	$(call say,The package without optimisation)
	$(MATURIN) develop --locked
	$(BIN)/python -m pip install "gristmill[dev]"
	@rm -f $(VENV)/.built
	@touch $@

# The tools that a wheel is built and checked with; the package need not be there.
$(VENV)/.ready-wheel-tools: $(BIN)/maturin
	$(BIN)/python -m pip install "auditwheel>=6,<7" "twine>=6,<8" "ziglang>=0.13,<0.18"
	@touch $@

# The requirements of one of the package's extras. An extra may name another one, so the package must be there already.
$(VENV)/.ready-%: pyproject.toml | $(VENV)/.built
	$(call say,What \"$*\" needs beside the package)
	$(BIN)/python -m pip install "gristmill[$*]"
	@touch $@
