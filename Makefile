# The front doors of the repository; the work is done by scripts/.
SHELL := /bin/bash
BIN := .venv/bin

.PHONY: help demo test test-fast test-gpu test-nightly test-versions lint docs man dist bench cluster clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1  /p' $(MAKEFILE_LIST) | column -t -l 2

demo:  ## train digits from start to end: the main job, on Slurm if there is one
	@scripts/bootstrap.sh demo
	$(BIN)/detslurm submit examples/digits/experiment.yaml --follow
	@echo "Next: \`. $(BIN)/activate\`, then \`detslurm experiment describe last\`," \
		"\`detslurm report last\` or \`detslurm top\`"

test:  ## run everything; ARGS goes to pytest
	@scripts/test.sh $(ARGS)

test-fast:  ## run what needs no cluster, mount or fresh clone, for the inner loop; ARGS as above
	@scripts/bootstrap.sh test
	@$(BIN)/python -m pytest -q -n $$((2 * $$(nproc))) -m "not cluster and not slow" \
		--ignore=tests/network --ignore=tests/docs/test_fresh_prefix.py --durations=20 $(ARGS)

test-gpu:  ## run what needs a GPU, and print a table; fails where there is none. PYTHON chooses a Python
	@scripts/gpu.sh $(ARGS)

test-nightly:  ## run what `make test` leaves out: the same stories with other frameworks, and at larger sizes
	@scripts/test.sh -m nightly $(ARGS)

test-versions:  ## run the tests of samplers with Optuna 4, and those of clusters on Slurm 24.11 and 26.05, Python 3.13 and 3.14; needs root
	@scripts/optuna.sh
	@scripts/versions.sh $(ARGS)

lint:  ## style, format and types
	@scripts/bootstrap.sh lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy --explicit-package-bases detslurm detslurm_command.py tests benchmarks scripts

docs:  ## write the documentation as a site to build/site
	@scripts/bootstrap.sh docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

man:  ## write man pages to build/man; man -M build/man detslurm-experiment-list shows one
	@scripts/bootstrap.sh test
	@$(BIN)/python -m scripts.man_pages build/man

dist:  ## the sdist and the wheel of the last commit, the same bytes on every machine, to dist
	@scripts/bootstrap.sh dist
	@$(BIN)/python -m scripts.dist dist

bench:  ## ratios against peers
	@scripts/bootstrap.sh test
	$(BIN)/python -m benchmarks $(ARGS)

cluster:  ## a Slurm cluster by hand, until Ctrl-C; ARGS as in python -m tests.cluster run --help
	@scripts/bootstrap.sh test
	@exec $(BIN)/python -m tests.cluster run $(ARGS)

clean:  ## remove what the targets above have made here
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
