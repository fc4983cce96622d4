# Everything is installed into .venv and made under build/. `make clean` removes both.
# pip is used as it is configured: its PIP_* variables and pip.conf count.

PYTHON ?= python3
BIN := .venv/bin
# A build for CPUs: other builds bring gigabytes of CUDA that this machine may not need.
TORCH ?= torch==2.13.0+cpu
PIP_INSTALL := $(BIN)/python -m pip install -qq --progress-bar off

# vLLM's next version, of which there is no build for the CPU: tests run its Python on the
# compiled parts of the installed one.
NEXT_VLLM := 0.33.0
NEXT := build/vllm-0.33

NATIVE := $(wildcard mpkv/memory/native/*.c mpkv/memory/native/*.h)

.PHONY: demo test chaos soak fuzz bench lint type tsan clean
.DELETE_ON_ERROR:

demo: .venv/.mpkv
	@$(BIN)/mpkv demo configs/local.toml

test: .venv/.mpkv $(NEXT)/.unpacked
	@$(BIN)/python -m pytest

# Engines pull from each other while FAULTS faults strike, drawn from SEED; 2,000 by default.
# With HOSTS=netns each has a network namespace of its own, which needs root; with
# INTEGRITY=full each checks every block that it pulls.
chaos: .venv/.mpkv
	@$(BIN)/python -m tests.chaos

# Two vLLM engines under random load, preempted, reset and robbed of their helpers, give the
# answers of one without mpkv, for SECONDS (300 by default) from SEED; VLLM=next takes engines
# of vLLM's next version.
soak: .venv/.mpkv $(NEXT)/.unpacked
	@$(BIN)/python -m tests.soak

# What peers and requests send, what engine and helpers write into rings, NIXL's metadata, and
# shared memory, for SECONDS; 120 by default.
fuzz: .venv/.mpkv
	@$(BIN)/python -m tests.fuzz

# Reports of this machine's speed in bench/; let nothing else run meanwhile.
bench: .venv/.mpkv
	@$(BIN)/mpkv bench all

lint: .venv/.mpkv
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: .venv/.mpkv
	@$(BIN)/mypy

# The C core under ThreadSanitizer; part of `make test` too.
tsan: .venv/.mpkv
	@$(BIN)/python -m pytest tests/memory/test_tsan.py

clean:
	rm -rf .venv build dist bench *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f mpkv/memory/*.so
	find mpkv cli tests -name __pycache__ -prune -exec rm -rf {} +

# Each stamp is written last, so that an interrupted step is done again.
.venv/.dependencies: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "mpkv needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing into .venv, some minutes the first time"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m tests.support.install_cpu '$(TORCH)'
	@touch $@

# Built again whenever the C changes.
.venv/.mpkv: .venv/.dependencies $(NATIVE)
	@$(PIP_INSTALL) --no-deps -e .
	@touch $@

$(NEXT)/.unpacked: tests/support/next_vllm.py | .venv/.dependencies
	@echo "Fetching vLLM $(NEXT_VLLM)"
	@rm -rf $(NEXT) $(NEXT).part
	@$(BIN)/python -m pip download -qq --progress-bar off --no-deps -d $(NEXT).part vllm==$(NEXT_VLLM)
	@$(BIN)/python -m tests.support.next_vllm $(NEXT).part $(NEXT)
	@rm -rf $(NEXT).part
	@touch $@
