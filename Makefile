# Every target does its own set-up: a virtual environment in .venv with the project in it. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARCHIVE := $(VENV)/spark-classes.jsa
export PYTHONWARNINGS :=
# detect-secrets takes a tenth of a second a file: it looks at those that name what could be one, or hold a key.
SECRETIVE := [Pp]assw|[Ss]ecret.?.? ?[:=]|[Tt]oken.?.? ?[:=]|PRIVATE KEY|AKIA|[A-Za-z0-9+/]{60}
SEARCHED := dlspark storage_node metadata conf examples .ci setup.cfg setup.py pyproject.toml README.md SECURITY.md Makefile
PYTEST := $(BIN)/python -m pytest
SECURED := $(addprefix tests/,spark/source spark/sink spark/catalog serving core cli)

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test check lint types contracts unit bench notebooks sim sim-logs sim-proxies torture secured shim speed compiled clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install the project with everything for development

$(STAMP): setup.cfg setup.py pyproject.toml .ci/check-machine
	@sh .ci/check-machine "$(PYTHON)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP) ## the main job: a year of flights through a replicated log, with faults, every figure checked
	$(BIN)/dlspark demo

test: lint ## lint, types, import contracts, and tests of every part: 12 minutes (starts every server it needs)
	@$(MAKE) --no-print-directory -j 2 types contracts $(ARCHIVE)
	@$(MAKE) --no-print-directory unit TIER=first

quick: lint ## lint, types, contracts, and the tests of what has changed since origin/main: a minute or two
	@$(MAKE) --no-print-directory -j 2 types contracts $(ARCHIVE)
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $$(PYTHONPATH=tests $(BIN)/python -m helpers.changed)

check: test ## all there is: `make test`, then the second tier of the tests, half an hour in all
	@$(MAKE) --no-print-directory unit TIER=second

lint: $(STAMP) ## ruff: style, format, what is unsafe (bandit's rules); detect-secrets: no secret in the sources
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@grep -rlIE "$(SECRETIVE)" $(SEARCHED) --include='*.py' --include='*.c*' --include='*.toml' --include='*.md' --include=Makefile \
		| LC_ALL=C sort | xargs -P 2 -n 40 $(BIN)/detect-secrets-hook --baseline .secrets.baseline

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMP) ## import contracts between the floors
	$(BIN)/lint-imports

$(ARCHIVE): $(STAMP) tests/helpers/quick_start/archive.py tests/helpers/quick_start/archived_program.py tests/helpers/jvm_flags.py
	PYTHONPATH=tests $(BIN)/python -m helpers.quick_start.archive

unit: $(STAMP) $(ARCHIVE) ## the tests alone (TIER=first or second, else both; ARGS="..." is passed on to pytest)
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder --tier $(or $(TIER),all) $(ARGS)

notebooks: $(STAMP) ## execute the notebooks and keep their output
	$(BIN)/python notebooks/execute.py

torture: $(STAMP) $(ARCHIVE) ## the long seeded rounds of faults (ROUNDS=n of each kind of round, 50 if not said), and all else that CI leaves out
	$(PYTEST) -m "torture or long" --rounds $(or $(ROUNDS),50) $(ARGS)

secured: $(STAMP) $(ARCHIVE) ## the suites of source, sink, catalog, core, proxies and command line on secured clusters: an hour
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --secured $(SECURED) $(ARGS)

sim: $(STAMP) ## clusters in simulation (SEEDS=n, 2000 if not said; FIRST=n to begin elsewhere), on all processors
	$(BIN)/python -m simulation --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),10000)

sim-logs: $(STAMP) ## the same with logs in every run
	$(BIN)/python -m simulation --logs --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),10000)

sim-proxies: $(STAMP) ## the same with write proxies and thin clients
	$(BIN)/python -m simulation --proxies --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),10000)

shim: $(STAMP) ## both jars from jvm-shim/ (needs a JDK; they are committed)
	$(BIN)/python jvm-shim/build.py

speed: $(STAMP) ## the optional compiled core from speed/, as a wheel in build/, into .venv (needs cargo)
	@sh .ci/has-rust
	$(BIN)/python -m pip install --quiet 'maturin>=1.9,<2'
	rm -rf build/speed
	$(BIN)/maturin build --release --quiet --manifest-path speed/Cargo.toml --interpreter $(BIN)/python --out build/speed
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps build/speed/*.whl
	@$(BIN)/python -c 'from metadata.foundation import compiled; print(compiled.said)'
	@echo 'Nodes, proxies and sessions that run already go on without it: restart them (dlspark sandbox stop, and start)'

compiled: $(STAMP) ## after `make speed`: the tests that run on the compiled core and on its twins in Python, on the former
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -k compiled tests/core/codec tests/storage_node/protocol \
		tests/storage_node/bookie/store/test_runs.py tests/serving/protocol $(ARGS)

bench: $(STAMP) ## one table of speed ratios, measured in one run
	$(BIN)/python -m benchmarks

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info demo-output
