# Two commands for a fresh machine: `make check` and `make test`. Everything goes into .venv; nothing is installed elsewhere,
# but for the Debian packages that tests of launchers and networks need, and those only where apt-get may be used.

PYTHON ?= python3
# The torch that the tests are written against. An environment of your own keeps the torch that it has.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
DEBIAN := iproute2 nftables procps strace tmux gcc slurmctld slurmd slurm-client munge openmpi-bin mpich
COMMANDS := ip nft ps strace tmux gcc slurmctld munged mpirun.openmpi mpiexec.hydra

.PHONY: check test test-all frameworks gpu static compiled docs cause try debian benchmarks clean

check: compiled
	$(BIN)/ddpdoctor check

# What only computes runs on all cores; what starts ranks, launchers and hosts runs alone, because it is about time.
ALONE := tests/rehearsal/test_programs.py tests/rehearsal/test_ending.py tests/probe tests/lab tests/gpu tests/hang/test_really.py tests/dumps/test_really.py tests/cli/test_check.py tests/cli/test_first_lines.py tests/collectors/test_launch_really.py tests/collectors/test_script_really.py tests/collectors/test_net_between_nodes.py
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q

test: $(VENV)/.tools compiled debian static
	$(PYTEST) -n auto -m "not slow" tests $(ALONE:%=--ignore=%)
	DDPDOCTOR_ONE_IN=20 VERSIONS=3.10 TESTS="tests/facts tests/scripts tests/rules tests/render tests/cli/test_lint.py tests/test_layers.py" sh tests/pythons.sh
	DDPDOCTOR_ONE_IN=20 VERSIONS=3.13 TESTS="tests/facts tests/scripts tests/rules tests/test_layers.py" sh tests/pythons.sh
	$(PYTEST) -m "not slow" $(ALONE)

test-all: $(VENV)/.tools compiled debian static
	DDPDOCTOR_FULL=1 $(PYTEST) -n auto tests $(ALONE:%=--ignore=%)
	sh tests/pythons.sh
	DDPDOCTOR_FULL=1 $(PYTEST) $(ALONE)
	$(MAKE) frameworks

# Programs of accelerate, Lightning, transformers and DeepSpeed, in a virtual environment of their own.
frameworks: compiled
	test -e .venv-frameworks/.installed || { $(PYTHON) -m venv .venv-frameworks && .venv-frameworks/bin/python -m pip install -q "$(TORCH)" -e . --group frameworks \
		&& touch .venv-frameworks/.installed; }
	DS_BUILD_OPS=0 PATH="$(CURDIR)/.venv-frameworks/bin:$$PATH" .venv-frameworks/bin/python -m pytest -q tests/rehearsal/frameworks.py

# On a bare machine with an NVIDIA GPU and a torch with CUDA: no .venv, no network; WHEELS is a folder of wheels to install first.
gpu:
	$(PYTHON) tests/gpu/run.py $(or $(RESULTS),gpu-results) $(if $(WHEELS),--wheels $(WHEELS)) --status docs/gpu-status.md

static: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# pip compiles what it installs, but not a package that it only links to: every start of the command would do it again.
compiled: $(VENV)/.installed
	$(BIN)/python -m compileall -q ddpdoctor

docs: $(VENV)/.tools
	$(BIN)/python -m ddpdoctor.render.manual docs/rules

# A new cause: make cause CODE=HOST NAME=some-pattern [VIEW=log]; then make try CODE=HOST503 until it passes. See CONTRIBUTING.md.
cause: $(VENV)/.tools
	@$(BIN)/python tests/new_cause.py "$(CODE)" "$(NAME)" --view "$(VIEW)"
	@$(BIN)/python -m ddpdoctor.render.manual docs/rules

HEALTHY := healthy or legal or right_form or fixture_expects or current or every_cause_of_a_script
try: docs
	$(BIN)/ruff check -q --fix ddpdoctor/rules && $(BIN)/ruff format -q ddpdoctor/rules && $(BIN)/mypy
	$(PYTEST) -n auto -m "not slow" -k "$(CODE) or $(HEALTHY)" tests/rules tests/logs tests/cli/test_lint_files.py tests/cli/test_lint_scripts.py \
		tests/collectors/test_script_really.py tests/render/test_manual.py

benchmarks: $(VENV)/.tools compiled
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/startup.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/gpus.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/control_plane.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/faults.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/dumps.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/run.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/triage.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/multinode.py

$(VENV)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(BIN)/python -m pip install -q --group dev "numpy>=1.26"  # torch.distributed needs it for objects
	touch $@

debian:
	@missing=""; for c in $(COMMANDS); do PATH="$$PATH:/usr/sbin:/sbin" command -v $$c >/dev/null || missing="$$missing $$c"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing what the tests need:$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(DEBIAN) >/dev/null; \
	else echo "not installed (their tests are skipped, and say so):$$missing"; fi

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
