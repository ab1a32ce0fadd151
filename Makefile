# Each target creates the virtual environment that it needs. "make help" lists the targets.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

# One stamp file per set of packages. Each stamp adds to the one it depends on. "make demo" therefore
# installs no test dependencies, and two installations never run at once.
DEMO_EXTRAS  := demo
DEV_EXTRAS   := atari,demo,dev,docs,gym,mujoco,ray,remote,sb3
# Libraries for the benchmarks. Those that cannot be installed are left out of the tables.
PEER_PACKAGES := envpool tianshou torchrl
# Libraries with conflicting requirements. Each has its own virtual environment, without its unused
# requirements. Missing packages, such as torch and pytest, are imported from .venv.
XUANCE := .venv-xuance
XUANCE_NEEDS := 'numpy<2' 'gymnasium<1.3' scipy PyYAML tqdm tensorboard wandb \
    pygame-ce typing_extensions
XUANCE_PARTS := xuance==1.4.4 pettingzoo==1.25.0 pyglet==1.5.15 mpe2
TIANSHOU := .venv-tianshou
TIANSHOU_NEEDS := 'deepdiff<8' h5py numba 'overrides<8' 'pandas<3' sensai-utils 'tensorboard<3'
TIANSHOU_PARTS := tianshou==2.0.1 pettingzoo==1.25.0
TORCHRL := .venv-torchrl
TORCHRL_PARTS := torchrl==0.14.1 tensordict==0.14.3
TORCHRL_NEEDS := pyvers hoptorch
PUFFERLIB := .venv-pufferlib
PUFFERLIB_NEEDS := 'numpy<2' gymnasium==0.29.1 pettingzoo==1.24.1 gym==0.26.2 psutil rich filelock
# SuperSuit and AgileRL, for the multi-agent benchmark.
MULTI_AGENT_PEERS := .venv-multi-agent
MULTI_AGENT_PARTS := supersuit==3.11.0 tinyscaler==1.2.8 agilerl==2.58.0 pettingzoo==1.25.0 \
    tensordict==0.15.3 accelerate
MULTI_AGENT_NEEDS := lazy-loader pyvers safetensors

# The oldest supported Python, with the minimum versions of all requirements.
OLDEST_PYTHON ?= python3.10
OLDEST        := .venv-oldest
OLDEST_EXTRAS := atari,gym,mujoco,plot,ray,remote,test

MADE  := $(VENV)/.made
DEMO  := $(VENV)/.installed-demo
GAMES := $(VENV)/.installed-games
DEV   := $(VENV)/.installed-dev
PEERS := $(VENV)/.installed-peers
LIBRARIES := $(XUANCE)/.installed $(TIANSHOU)/.installed $(TORCHRL)/.installed
FLOORS := $(OLDEST)/.installed
UNFINISHED := $(VENV)/.unfinished

# The second builder reuses the doctrees of the first. Examples show crashes, whose messages go to
# standard error: show it only if a builder fails.
SPHINX_LOG := docs/_build/errors.log
SPHINX = mkdir -p docs/_build && $(RUN) -m sphinx -W --keep-going -q -j auto -d docs/_build/doctrees \
  -b $(1) docs docs/_build/$(1) 2>$(SPHINX_LOG) || { cat $(SPHINX_LOG); exit 1; }

# pip would compile all modules, which takes as long as the rest. Few are imported, and Python compiles those.
PIP_INSTALL := $(RUN) -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

# All tests of a file run in one process, which shares their fixtures, and so do all over Ray.
# Files keep their order. tests/conftest.py sets the number of processes.
IN_PARALLEL := --numprocesses auto --dist loadfile --no-loadscope-reorder

# The Pythons of test-pythons; a t marks a free-threaded one.
PYTHONS := 3.14 3.15 3.14t 3.15t
AS_MACOS_TESTS := tests/engine tests/vector_envs tests/faults tests/state

# Processes share the many short tests among the long ones, which compare values: the contract over
# every backend and within each transform, saved states, and games and other libraries beside ours.
# The rest, such as soak tests and training runs, run with a file in each process.
LONG      := $(RUN) -m pytest -m long --timeout 1800
COMPARING := tests/transforms/test_contract.py tests/multi_agent tests/multi_objective tests/compat tests/gym \
    tests/state $(wildcard tests/vector_envs/test_contract_*.py)

# Each process would otherwise compile all modules again.
demo test test-long test-libraries test-oldest test-pythons docs: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-long libraries test-libraries test-oldest test-pythons test-as-macos test-windows lint format types docs bench bench-peers bench-page clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-15s %s\n", $$1, $$2}'

demo: $(if $(ENV),$(GAMES),$(DEMO)) ## train an agent and measure steps per second; ENV=Breakout measures that game
	@$(RUN) -m xuance_envs demo $(ENV)

test: $(DEV) ## run the tests, files in parallel
	@$(RUN) -m pytest $(IN_PARALLEL)

test-long: $(DEV) $(XUANCE)/.installed ## run the tests marked long, which take minutes
	@$(LONG) --numprocesses auto --dist worksteal $(COMPARING) || failed=1; \
	$(LONG) $(IN_PARALLEL) $(addprefix --ignore=,$(COMPARING)) || failed=1; \
	$(XUANCE)/bin/python -m pytest -q -p no:cacheprovider -m long tests/multi_agent/test_xuance_agents.py \
	  tests/compat/test_xuance.py || failed=1; \
	[ -z "$$failed" ]

libraries: $(LIBRARIES)

# Their record of durations would replace that of "make test".
test-libraries: $(LIBRARIES) ## run the tests with XuanCe, Tianshou and TorchRL in separate virtual environments
	@for library in xuance tianshou torchrl; do \
	  .venv-$$library/bin/python -m pytest -q -p no:cacheprovider tests/compat/test_$$library.py || failed=1; \
	done; \
	[ -z "$$failed" ]

test-oldest: $(FLOORS) ## run the tests with the minimum versions of setup.py
	@$(OLDEST)/bin/python -m pytest $(IN_PARALLEL)

test-pythons: ## run the tests with PYTHONS="3.14 3.15 3.14t 3.15t", built if necessary; TESTS=... selects
	@TESTS="$(TESTS)" .ci/test_pythons $(PYTHONS)

test-as-macos: $(DEV) ## run tests of workers while this Linux lacks what macOS lacks
	@PYTHONPATH=tests/as_macos $(RUN) -m pytest $(IN_PARALLEL) $(AS_MACOS_TESTS)

test-windows: $(DEV) ## run tests with Python for Windows under Wine; downloads both into .wine
	@.ci/test_windows $(RUN)

lint: $(DEV) ## check style and formatting
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: $(DEV) ## fix style and formatting
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

types: $(DEV) ## check types, for each system
	@echo linux darwin win32 | xargs -n 1 -P 3 sh -c '$(RUN) -m mypy --platform $$0 --cache-dir .mypy_cache/$$0'

docs: $(DEV) ## build the documentation into docs/_build/html, run its examples, check its pages
	@rm -rf docs/api
	@$(call SPHINX,html)
	@$(call SPHINX,doctest)
	@$(RUN) docs/check_links.py docs/_build/html
	@$(RUN) docs/check_pages.py docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

bench: $(DEMO) ## measure steps per second
	@$(RUN) -m benchmarks.throughput

bench-peers: $(PEERS) ## also measure other libraries, and update docs/benchmarks.md
	@$(RUN) -m benchmarks.page throughput

bench-page: $(PEERS) ## repeat the measurements of docs/benchmarks.md; 25 minutes or more on two idle cores
	@$(RUN) -m benchmarks.page

clean: ## remove the virtual environments and all build output
	rm -rf $(VENV) .venv-3.* .pythons .wine $(OLDEST) $(XUANCE) $(TIANSHOU) $(TORCHRL) $(PUFFERLIB) $(MULTI_AGENT_PEERS) build dist docs/_build docs/api *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis demo_output renders
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- virtual environments -------------------------------------------------------------------

$(DEMO): Makefile setup.py constraints.txt $(MADE)
	$(call install,the requirements of the demo,-e '.[$(DEMO_EXTRAS)]')

$(GAMES): $(DEMO)
	$(call install,the requirements of Atari games,-e '.[atari]')

# The requirement pygame of mo-gymnasium would overwrite files of pygame-ce, which Gymnasium requires.
$(DEV): $(DEMO)
	@$(PIP_INSTALL) --no-deps 'mo-gymnasium>=1.3'
	$(call install,the requirements of tests and checks; the first time takes a minute,--no-warn-conflicts -e '.[$(DEV_EXTRAS)]')

$(PEERS): $(DEV)
	@$(RUN) -m pip list --format=freeze | grep -E '^(numpy|gymnasium|torch)==' > $(VENV)/.kept
	@for package in $(PEER_PACKAGES); do \
	  echo "==> installing $$package for the benchmarks"; \
	  echo $$$$ > $(UNFINISHED); $(PIP_INSTALL) -c $(VENV)/.kept $$package; status=$$?; \
	  rm -f $(UNFINISHED); \
	  [ $$status = 0 ] || echo "$$package cannot be installed here; the benchmarks skip it"; \
	done
	@$(MAKE) -s $(XUANCE)/.installed || echo "XuanCe cannot be installed here; the benchmarks skip it"
	@$(call install_apart,$(PUFFERLIB),pufferlib==1.0.1,$(PUFFERLIB_NEEDS)) \
	  || { rm -rf $(PUFFERLIB); echo "PufferLib cannot be installed here; the benchmarks skip it"; }
	@$(call install_apart,$(MULTI_AGENT_PEERS),$(MULTI_AGENT_PARTS),$(MULTI_AGENT_NEEDS)) \
	  || { rm -rf $(MULTI_AGENT_PEERS); \
	    echo "SuperSuit and AgileRL cannot be installed here; the benchmarks skip them"; }
	@touch $@

# Depends on .venv: parallel installations would be slower, and missing packages come from .venv.
$(XUANCE)/.installed: Makefile $(DEV)
	@$(call install_apart,$(XUANCE),$(XUANCE_PARTS),$(XUANCE_NEEDS))
	@touch $@

$(TIANSHOU)/.installed: Makefile $(DEV)
	@$(call install_apart,$(TIANSHOU),$(TIANSHOU_PARTS),$(TIANSHOU_NEEDS))
	@touch $@

$(TORCHRL)/.installed: Makefile $(DEV)
	@$(call install_apart,$(TORCHRL),$(TORCHRL_PARTS),$(TORCHRL_NEEDS))
	@touch $@

# Recreated when a minimum version changes, because pip keeps installed versions that still fit.
$(FLOORS): Makefile setup.py .ci/floors.py
	@echo "==> creating $(OLDEST) with the minimum versions of setup.py; this takes minutes"
	@$(OLDEST_PYTHON) -m venv --clear $(OLDEST) || { \
	  echo "Could not create a virtual environment with '$(OLDEST_PYTHON)'. Python 3.10 is required;" >&2; \
	  echo "if it is elsewhere, run 'make test-oldest OLDEST_PYTHON=...'." >&2; \
	  exit 1; }
	@$(OLDEST)/bin/python .ci/floors.py > $(OLDEST)/floors.txt
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check 'pip>=23.1' 'swig==4.*' wheel
	@# The Box2D of the oldest Gymnasium has no wheels, and its build calls the script swig.
	@PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" $(OLDEST)/bin/python -m pip install -qq \
	  --disable-pip-version-check --no-build-isolation box2d-py==2.3.5
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check \
	  -c $(OLDEST)/floors.txt -e '.[$(OLDEST_EXTRAS)]'
	@touch $@

# Create a virtual environment that falls back to the packages of .venv, such as pip. Arguments: its
# folder, packages to install without dependencies, and the dependencies to install.
define install_apart
echo "==> creating $(1) for $(firstword $(2))" \
  && $(PYTHON) -m venv --clear --without-pip $(1) \
  && $(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth" \
  && $(1)/bin/python -m pip install -qq --no-compile --disable-pip-version-check $(3) \
  && $(1)/bin/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps $(2)
endef

# The file $(UNFINISHED) holds the id of the installing process, which removes the file when it is
# done. If the file outlives the process, packages may be incomplete, and installation starts over.
define install
	@echo "==> installing $(1)"
	@echo $$$$ > $(UNFINISHED); $(PIP_INSTALL) $(2); status=$$?; rm -f $(UNFINISHED); exit $$status
	@touch $@
endef

ifneq ($(wildcard $(UNFINISHED)),)
$(MADE): FORCE
endif
FORCE:

# Keeps an existing virtual environment that works.
$(MADE):
	@if [ -e $(UNFINISHED) ] && kill -0 "$$(cat $(UNFINISHED))" 2>/dev/null; then \
	  echo "another make is installing into $(VENV); try again when it has finished" >&2; exit 1; fi
	@if [ -e $(UNFINISHED) ] || ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	  echo "==> creating a virtual environment in $(VENV)"; \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "Could not create a virtual environment with '$(PYTHON)'. Python 3.10 or later with the" >&2; \
	    echo "venv module is required (Debian and Ubuntu: 'apt install python3-venv')." >&2; \
	    echo "To use another Python, run 'make PYTHON=...'." >&2; \
	    exit 1; }; \
	fi
	@# Older versions of pip can spend an hour on resolving dependencies.
	@$(PIP_INSTALL) 'pip>=25'
	@touch $@
