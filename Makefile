# `make pretrain` runs the main job, `make test` passes the tests; both make .venv first. Needs Python 3.11 or newer.
PYTHON ?= python3
PRESET ?= tiny
BIN := .venv/bin
# Nothing calls home, and `make pretrain` needs no server.
export DO_NOT_TRACK = true
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export MLFLOW_DISABLE_TELEMETRY = true
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: pretrain test check format bench chaos up down clean-artifacts

pretrain: .venv/installed
	PREFECT_API_URL= PREFECT_HOME="$(CURDIR)/artifacts/prefect" $(BIN)/pretrain-bert run --preset "$(PRESET)" \
		$(if $(CORPUS),--corpus "$(CORPUS)") $(if $(STEPS),--steps "$(STEPS)") $(if $(SEED),--seed "$(SEED)")

test: .venv/installed-dev
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

check: .venv/installed-dev
	$(BIN)/ruff check flows pipeline tests
	$(BIN)/ruff format --check flows pipeline tests
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix-only flows pipeline tests
	$(BIN)/ruff format flows pipeline tests

bench: .venv/installed
	$(BIN)/python tests/benchmarks/bench.py $(ARGS)

chaos: .venv/installed
	$(BIN)/python -m tests.chaos $(ARGS)

# STACK=team: PostgreSQL behind both servers, and passwords (docs/servers.md).
up: .venv/installed$(if $(filter team,$(STACK)),-team)
	$(BIN)/python -m flows.stack up

down: .venv/installed
	$(BIN)/python -m flows.stack down

# Shows what no registered version and no run of the last 7 days (or DAYS) leads to; YES=1 removes it.
clean-artifacts: .venv/installed
	$(BIN)/pretrain-bert clean $(if $(DAYS),--days "$(DAYS)") $(if $(filter 1,$(YES)),--yes)

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: Python %d.%d is too old, wanted 3.11 or newer: make PYTHON=python3.11 …" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/installed-team: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[team]'
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
