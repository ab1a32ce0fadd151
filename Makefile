# Every target builds the virtual environment it needs; "make help" lists them.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

# What is installed, by stamp. Each stamp installs on top of the one it depends on, so that
# "make demo" does not wait for what only the tests need, and two installs never run at once.
DEMO_EXTRAS  := demo
DEV_EXTRAS   := atari,demo,dev,docs,gym,mujoco,ray,remote,sb3
# The libraries that are compared with. What does not install is left out of the tables.
PEER_PACKAGES := envpool tianshou torchrl
# Those that need other versions of what we need, each in an environment of its own, without the
# parts of their requirements that are not used here. What they do not bring, such as torch and
# pytest, is looked for in ours.
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
# SuperSuit and AgileRL, which step many agents.
MANY := .venv-many
MANY_PARTS := supersuit==3.11.0 tinyscaler==1.2.8 agilerl==2.58.0 pettingzoo==1.25.0 \
    tensordict==0.15.3 accelerate
MANY_NEEDS := lazy-loader pyvers safetensors

# The oldest Python, and the floor of everything that does without torch.
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

# The second builder reads nothing again that the first has read.
SPHINX := $(RUN) -m sphinx -W --keep-going -q -j auto -d docs/_build/doctrees

PIP_INSTALL := $(RUN) -m pip install -qq --disable-pip-version-check -c constraints.txt

# A file's tests stay in one process, which starts what they share, and files in their order: those
# with Ray are the last. How many processes there are is in tests/conftest.py.
SIDE_BY_SIDE := --numprocesses auto --dist loadfile --no-loadscope-reorder

# The long ones one after the other, but for the contract within each transform: twenty thousand
# short tests.
LONG   := $(RUN) -m pytest -m long --timeout 1800
WITHIN := tests/transforms/test_contract.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-libraries test-oldest lint format types docs bench bench-peers bench-page clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-12s %s\n", $$1, $$2}'

demo: $(if $(ENV),$(GAMES),$(DEMO)) ## train an agent and time its environments; ENV=Breakout times a game
	@$(RUN) -m xuance_envs demo $(ENV)

test: $(DEV) ## run the tests, files side by side
	@$(RUN) -m pytest $(SIDE_BY_SIDE)

test-long: $(DEV) ## run the tests that take minutes
	@$(LONG) --ignore $(WITHIN) || failed=1; \
	$(LONG) --numprocesses auto --dist worksteal $(WITHIN) || failed=1; \
	[ -z "$$failed" ]

test-libraries: $(LIBRARIES) ## run the tests with XuanCe, Tianshou and TorchRL, each in an environment of its own
	@for library in xuance tianshou torchrl; do \
	  .venv-$$library/bin/python -m pytest -q tests/compat/test_$$library.py || failed=1; \
	done; \
	$(XUANCE)/bin/python -m pytest -q -m long tests/multi_agent/test_xuance_agents.py || failed=1; \
	[ -z "$$failed" ]

test-oldest: $(FLOORS) ## run the tests with the oldest releases that setup.py allows, without torch
	@$(OLDEST)/bin/python -m pytest $(SIDE_BY_SIDE)

lint: $(DEV) ## check style and format
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: $(DEV) ## mend style and format
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

types: $(DEV) ## check types
	@$(RUN) -m mypy

docs: $(DEV) ## build the documentation into docs/_build/html, run its examples, look at its pages
	@rm -rf docs/api
	@$(SPHINX) -b html docs docs/_build/html
	@$(SPHINX) -b doctest docs docs/_build/doctest
	@$(RUN) docs/check_links.py docs/_build/html
	@$(RUN) docs/check_pages.py docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

bench: $(DEMO) ## measure steps per second
	@$(RUN) -m benchmarks.throughput

bench-peers: $(PEERS) ## the same beside other libraries, into docs/benchmarks.md
	@$(RUN) -m benchmarks.page throughput

bench-page: $(PEERS) ## measure all that docs/benchmarks.md shows; twenty-five minutes on two quiet cores
	@$(RUN) -m benchmarks.page

clean: ## remove the virtual environments and everything that was built
	rm -rf $(VENV) $(OLDEST) $(XUANCE) $(TIANSHOU) $(TORCHRL) $(PUFFERLIB) $(MANY) build dist docs/_build docs/api *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis demo_output renders
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the virtual environment -------------------------------------------------------------------

$(DEMO): Makefile setup.py constraints.txt $(MADE)
	$(call install,what the demo needs,-e '.[$(DEMO_EXTRAS)]')

$(GAMES): $(DEMO)
	$(call install,what Atari games need,-e '.[atari]')

$(DEV): $(DEMO)
	$(call install,what the tests and checks need; the first time takes minutes,-e '.[$(DEV_EXTRAS)]')

$(PEERS): $(DEV)
	@$(RUN) -m pip list --format=freeze | grep -E '^(numpy|gymnasium|torch)==' > $(VENV)/.kept
	@for package in $(PEER_PACKAGES); do \
	  echo "==> installing $$package, to compare with"; \
	  echo $$$$ > $(UNFINISHED); $(PIP_INSTALL) -c $(VENV)/.kept $$package; status=$$?; \
	  rm -f $(UNFINISHED); \
	  [ $$status = 0 ] || echo "$$package does not install here: it is left out"; \
	done
	@$(MAKE) -s $(XUANCE)/.installed || echo "XuanCe does not install here: it is left out"
	@$(call install_apart,$(PUFFERLIB),pufferlib==1.0.1,$(PUFFERLIB_NEEDS)) \
	  || { rm -rf $(PUFFERLIB); echo "PufferLib does not install here: it is left out"; }
	@$(call install_apart,$(MANY),$(MANY_PARTS),$(MANY_NEEDS)) \
	  || { rm -rf $(MANY); echo "SuperSuit and AgileRL do not install here: they are left out"; }
	@touch $@

# After ours: two installations at once would be slower, and what is missing is looked for in it.
$(XUANCE)/.installed: Makefile $(DEV)
	@$(call install_apart,$(XUANCE),$(XUANCE_PARTS),$(XUANCE_NEEDS))
	@touch $@

$(TIANSHOU)/.installed: Makefile $(DEV)
	@$(call install_apart,$(TIANSHOU),$(TIANSHOU_PARTS),$(TIANSHOU_NEEDS))
	@touch $@

$(TORCHRL)/.installed: Makefile $(DEV)
	@$(call install_apart,$(TORCHRL),$(TORCHRL_PARTS),$(TORCHRL_NEEDS))
	@touch $@

# Made anew whenever a floor changes: pip leaves what fits already as it is.
$(FLOORS): Makefile setup.py .ci/floors.py
	@echo "==> making $(OLDEST), with the floors that setup.py states; this takes minutes"
	@$(OLDEST_PYTHON) -m venv --clear $(OLDEST) || { \
	  echo "Could not make a virtual environment with '$(OLDEST_PYTHON)'. It takes Python 3.10," >&2; \
	  echo "the oldest that is supported: 'make test-oldest OLDEST_PYTHON=...' says where it is." >&2; \
	  exit 1; }
	@$(OLDEST)/bin/python .ci/floors.py > $(OLDEST)/floors.txt
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check 'pip>=23.1'
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check \
	  -c $(OLDEST)/floors.txt -e '.[$(OLDEST_EXTRAS)]'
	@touch $@

# In an environment of its own, which looks in ours for what it has not: its folder, packages
# without what they need, and what they need.
define install_apart
echo "==> making $(1) for $(firstword $(2))" \
  && $(PYTHON) -m venv --clear $(1) \
  && $(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth" \
  && $(1)/bin/python -m pip install -qq --disable-pip-version-check $(3) \
  && $(1)/bin/python -m pip install -qq --disable-pip-version-check --no-deps $(2)
endef

# The note holds the process that installs, and is gone when that has succeeded or failed: where
# it outlived its process, packages may lie there in halves, and everything starts again.
define install
	@echo "==> installing $(1)"
	@echo $$$$ > $(UNFINISHED); $(PIP_INSTALL) $(2); status=$$?; rm -f $(UNFINISHED); exit $$status
	@touch $@
endef

ifneq ($(wildcard $(UNFINISHED)),)
$(MADE): FORCE
endif
FORCE:

# A working environment that is already there is kept.
$(MADE):
	@if [ -e $(UNFINISHED) ] && kill -0 "$$(cat $(UNFINISHED))" 2>/dev/null; then \
	  echo "another make is installing into $(VENV): try again when it is done" >&2; exit 1; fi
	@if [ -e $(UNFINISHED) ] || ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	  echo "==> making a virtual environment in $(VENV)"; \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "Could not make a virtual environment with '$(PYTHON)'. It takes Python 3.10 or later" >&2; \
	    echo "with its venv module: on Debian and Ubuntu 'apt install python3-venv';" >&2; \
	    echo "another Python is chosen with 'make PYTHON=...'." >&2; \
	    exit 1; }; \
	fi
	@# Older ones can search for an hour for versions that go together.
	@$(PIP_INSTALL) 'pip>=23.1'
	@touch $@
