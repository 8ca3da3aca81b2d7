# Every target is idempotent and installs what it needs into this checkout. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# --- knobs -----------------------------------------------------------------------------------------
WORKERS ?= 2
PORT ?= 30000
MODEL ?= demo
N ?= 2000
SEEDS ?= 300
FIRST ?= 0
# cpu = the small torch build, where the network has it; auto = what PyPI serves (about 5.4 GB a venv).
TORCH_BACKEND ?= auto

# --- places ----------------------------------------------------------------------------------------
STAMPS := .make
UV := $(STAMPS)/boot/bin/uv
VENV := .venv
PY := $(VENV)/bin/python
SMG := target/debug/smg
RUST_SOURCES := $(shell find gateway bindings/python proto -name '*.rs' -o -name '*.toml' -o -name '*.proto' -o -name '*.wit' 2>/dev/null) Cargo.toml Cargo.lock
WHEEL_SOURCES := $(RUST_SOURCES) $(shell find bindings/python/src -name '*.py' -o -name '*.pyi') bindings/python/pyproject.toml
PYTEST := $(PY) -m pytest -q
ifneq ($(TORCH_BACKEND),auto)
export UV_TORCH_BACKEND := $(TORCH_BACKEND)
endif
export PYTHONUNBUFFERED := 1

.PHONY: help serve build check test unit rust-test wire e2e peers exact determinism soak sim bench dist fix proto demo clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

# --- set-up ----------------------------------------------------------------------------------------
$(UV):
	@command -v python3 >/dev/null || { echo "make: Python 3.10 or newer is missing; install python3 and python3-venv."; exit 1; }
	@command -v cc >/dev/null || { echo "make: a C compiler is missing; install gcc (Debian: build-essential)."; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: Python 3.10 or newer is needed, this is $$(python3 --version)."; exit 1; }
	@echo "==> uv"
	@python3 -m venv $(STAMPS)/boot || { echo "make: the venv module is missing; install python3-venv."; exit 1; }
	@$(STAMPS)/boot/bin/python -m pip install --quiet --disable-pip-version-check uv

# Tools only (maturin, linters, pytest …): small, so that the Rust build need not wait for torch.
$(STAMPS)/tools: pyproject.toml constraints.txt | $(UV)
	@echo "==> Python tools into $(VENV)"
	@test -x $(PY) || $(UV) venv --quiet $(VENV)
	@$(UV) pip install --quiet -p $(PY) -c constraints.txt --group dev
	@touch $@

$(STAMPS)/rust: $(RUST_SOURCES)
	@mkdir -p $(STAMPS)
	@command -v cargo >/dev/null || { echo "make: Rust (cargo 1.95 or newer) is missing; install it with rustup."; exit 1; }
	@echo "==> Rust build (the first one takes a few minutes)"
	@cargo build --locked -p sgl-model-gateway -p smg-simulator
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/rust $(STAMPS)/tools $(WHEEL_SOURCES)
	@echo "==> wheel sglang-router"
	@mkdir -p dist && rm -f dist/sglang_router-*.whl
	@$(VENV)/bin/maturin build --quiet --locked --profile dev --manifest-path bindings/python/Cargo.toml --out dist
	@touch $@

$(STAMPS)/engine: $(STAMPS)/wheel pyproject.toml constraints.txt engine/hatch_build.py proto/common.proto proto/sglang_scheduler.proto proto/sglang_engine.proto
	@echo "==> engine and torch into $(VENV) (a first install downloads about 3 GB)"
	@$(UV) pip install --quiet -p $(PY) -c constraints.txt --reinstall-package sglang-router --reinstall-package sglang dist/sglang_router-*.whl -e .
	@touch $@

build: $(STAMPS)/engine ## the smg binary, the sglang-router wheel and the sglang wheel (dist/)
	@$(UV) build --quiet --wheel --out-dir dist .
	@ls -1 $(SMG) dist/*.whl

demo: $(STAMPS)/engine
	@$(VENV)/bin/sglang download demo

# --- run -------------------------------------------------------------------------------------------
serve: $(STAMPS)/engine ## gateway + WORKERS=2 CPU engines with the demo model on PORT=30000
	@exec $(VENV)/bin/smg server --port $(PORT) --dp-size $(WORKERS) --model-path $(MODEL)

# --- check and test --------------------------------------------------------------------------------
check: $(STAMPS)/engine ## format, lint, layers, budgets, types
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@PYTHONPATH=engine $(VENV)/bin/lint-imports
	@$(VENV)/bin/mypy
	@$(PYTEST) tests/architecture

unit: $(STAMPS)/engine ## Python unit and contract tests
	@$(PYTEST) tests/unit tests/contract tests/registered

rust-test: $(STAMPS)/rust ## Rust tests
	@cargo test --locked --workspace --exclude sglang-router

wire: $(STAMPS)/engine ## gateway and engine against doubles of each other
	@$(PYTEST) tests/wire

e2e: demo ## real processes, the demo model
	@$(PYTEST) tests/e2e

peers: demo $(STAMPS)/peers ## published gateways drive our engine; our gateway drives published stubs
	@$(PYTEST) tests/peers

$(STAMPS)/peers: tests/peers/install.sh | $(UV)
	@bash tests/peers/install.sh $(UV) $(STAMPS)/peers.d
	@touch $@

exact: demo ## 64 greedy tokens of 24 prompts against transformers, per mode
	@$(PY) -m tests.e2e.exact

determinism: demo ## different answers per prompt in 50 batches, with and without deterministic mode
	@$(PY) -m tests.e2e.determinism

soak: demo ## N=2000 requests with cancels; pages and memory must come back
	@$(PY) -m tests.e2e.soak --requests $(N)

sim: ## SEEDS=300 gateways under faults by chance, from seed FIRST=0 on
	@cargo test --locked -q -p sgl-model-gateway --test sim -- --seeds $(SEEDS) --first $(FIRST)

test: check rust-test unit wire e2e peers ## everything that CI runs

# --- measure, ship, keep ---------------------------------------------------------------------------
bench: demo $(STAMPS)/peers ## tables of ratios beside the peers
	@cargo build --locked --release -p sgl-model-gateway -p smg-simulator
	@$(PY) -m bench

dist: $(STAMPS)/tools ## release artefacts: optimized binary and wheels
	@cargo build --locked --release -p sgl-model-gateway
	@$(VENV)/bin/maturin build --locked --release --manifest-path bindings/python/Cargo.toml --out dist
	@$(UV) build --wheel --out-dir dist .

proto: $(STAMPS)/tools ## compile proto/ into the engine's descriptor set
	@$(PY) engine/hatch_build.py

fix: $(STAMPS)/engine ## format, and rewrite generated files
	@cargo fmt --all
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .
	@$(PY) -m tests.architecture.generated

clean: ## remove everything that was built or installed here
	@rm -rf target $(VENV) $(STAMPS) dist
