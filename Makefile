# `make train` and `make test` are all you need to begin. Everything runs in .venv, which the first target makes;
# each target installs the extras it needs, once.
VENV ?= .venv
BIN  := $(VENV)/bin
# the first of these that runs, has venv, and is 3.11, 3.12 or 3.13
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	"$$name" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 \
	&& echo "$$name" && break; done)
# make UV=uv: packages are installed by uv, which is faster and does not read pip's configuration
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet)
# one thread per process: two training processes share two cores
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1
# bytecode is written: without, each of the tests' processes would compile all that it imports
unexport PYTHONDONTWRITEBYTECODE

# $(call extras,test+guest): the stamp of an environment that has these extras
extras = $(VENV)/.installed-$(1)
comma := ,
# $(call files,slow): the test files with this marker; the others are not imported (tests/conftest.py checks the rule)
files = $(shell grep -rlE --include='test_*.py' '\bmark\.$(1)\b' tests)

.DEFAULT_GOAL := help
.PHONY: help env train train-local test test-slow test-desktop test-apps test-docker test-official test-storage test-ray test-vllm test-experts test-browser soak nightly lint docs wheel \
	bench bench-desktops results results-terse tiny tiny-free tiny-plans tiny-local settings clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 17

env: $(call extras,test)    ## .venv with everything that the default tests need

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 with venv found; fix: make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(if $(UV),--without-pip) $(VENV)
	$(INSTALL) --upgrade "pip>=24"

# python-xlib once more, and last: python3-xlib, which pyautogui requires, installs an older package Xlib over it
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e ".[$(subst +,$(comma),$*)]"
	$(if $(filter guest,$(subst +, ,$*)),$(INSTALL) -c constraints.txt --force-reinstall --no-deps python-xlib)
	@touch $@

train: $(call extras,bepa)  ## BEPA and GRPO on the simulated desktop: curves, table, checkpoint (5 minutes on two cores)
	$(BIN)/python examples/train_bepa.py

# further settings: make train-local SETTINGS='name=mine seed=1 algo=level1 compare=[]' (docs/train-local.md)
SETTINGS ?=
train-local: $(call extras,bepa+guest)  ## BEPA and GRPO on 8 real desktops: curves, table, GIF (23 minutes on two cores)
	$(BIN)/osworld-gym doctor --packages
	$(BIN)/python examples/train_bepa.py experiment=local $(SETTINGS)

# test processes of the default and the slow tests
JOBS ?= 2
test: $(call extras,test)   ## the default tests: pip packages only (5 to 6 minutes on two cores)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-slow: $(call extras,test)  ## whole training runs, resume, the program end to end (minutes)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "slow and not (desktop or apps or docker or official or vllm or nightly)" --timeout 900 $(call files,slow)

test-desktop: $(call extras,test+guest)  ## a real X server, real applications (scripts/apt-packages.txt)
	$(BIN)/python -m pytest -m "desktop and not (soak or nightly)" --timeout 600 $(call files,desktop)

test-apps: $(call extras,test+guest)  ## LibreOffice, Chromium, GIMP, VLC, Thunderbird (osworld-gym install-desktop)
	$(BIN)/python -m pytest -m "apps and not (soak or nightly)" --timeout 900 $(call files,apps)

test-docker: $(call extras,test+guest+container)  ## the container provider on a running Docker engine
	$(BIN)/python -m pytest -m "docker and not (soak or nightly)" --timeout 900 $(call files,docker)

test-official: $(call extras,test+guest+official-eval)  ## OSWorld's own client and evaluators against our guest
	$(BIN)/osworld-gym install-official
	# OSWorld's code and its packages warn as they like: only ours must not
	$(BIN)/python -m pytest -m "official and not (soak or nightly)" --timeout 900 -W default $(call files,official)

test-storage: $(call extras,test+storage-test) build/azurite/node_modules  ## stores on S3 and Azure Blob servers of this machine (needs npm)
	$(BIN)/python -m pytest -m "storage and not nightly" --timeout 600 $(call files,storage)

test-ray: $(call extras,test+guest+ray)  ## Ray clusters on this machine: kills of each kind of process, bad nodes, two clusters, real desktops (scripts/apt-packages.txt)
	$(BIN)/python -m scripts.test_files ray --timeout 600

test-browser: $(call extras,test+guest+browser)  ## the pages of bepa view in Debian's chromium (apt-get install chromium, scripts/apt-packages.txt)
	$(BIN)/python -m pytest -m "browser and not nightly" --timeout 300 $(call files,browser)

build/azurite/node_modules:
	@command -v npm >/dev/null || { echo "npm not found; fix: apt-get update && apt-get install npm"; exit 2; }
	npm install --silent --no-fund --no-audit --prefix build/azurite azurite@3

# an environment of its own: vLLM requires an older numpy
VLLM_VENV ?= .venv-vllm
$(VLLM_VENV)/.installed: pyproject.toml constraints-vllm.txt scripts/install_vllm.sh | $(BIN)/python
	scripts/install_vllm.sh $(BIN)/python $(VLLM_VENV)
	@touch $@

test-vllm: $(VLLM_VENV)/.installed  ## rollouts with vLLM on the CPU: sampling, weight sync, training (docs/vllm.md)
	$(VLLM_VENV)/bin/python -m pytest -m vllm --timeout 900 -W default $(call files,vllm)

# an environment of its own: the agents' packages are not ours
GUI_AGENTS_VENV ?= .venv-gui-agents
$(GUI_AGENTS_VENV)/.installed: scripts/install_gui_agents.sh | $(BIN)/python
	scripts/install_gui_agents.sh $(BIN)/python $(GUI_AGENTS_VENV)
	@touch $@

test-experts: $(call extras,test) $(GUI_AGENTS_VENV)/.installed  ## logs that the real Agent S2, S2.5 and S3 write (docs/experts.md)
	GUI_AGENTS_PYTHON=$(GUI_AGENTS_VENV)/bin/python $(BIN)/python -m pytest -m experts --timeout 600 $(call files,experts)

# a part of it: make soak ONLY='kills and part3'
ONLY ?=
soak: $(call extras,test+guest+ray)   ## hours: SOAK_RESETS=2000 resets of real desktops (scripts/apt-packages.txt), fifty kills of runs on Ray
	$(BIN)/osworld-gym doctor --packages
	$(BIN)/python -m pytest -m soak --timeout 36000 $(if $(ONLY),-k "$(ONLY)") $(call files,soak)

# the seed of the property tests' examples; make nightly SEED=N repeats those of a failure
ifndef SEED
SEED := $(shell date +%s)
endif
nightly: $(call extras,test+guest+official-eval+ray)  ## the exhaustive versions of what the other tiers sample, property tests with new examples (hours)
	$(BIN)/osworld-gym install-official
	@echo "property tests: make nightly SEED=$(SEED)"
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m "(nightly and not ray) or (hypothesis and not (docker or storage or vllm))" \
		--hypothesis-seed=$(SEED) --timeout 7200 -W default || { echo "failed with make nightly SEED=$(SEED)"; exit 1; }
	$(BIN)/python -m scripts.test_files ray --nightly --timeout 7200

lint: $(call extras,test)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

settings: $(call extras,test)  ## configs/train.yaml and docs/settings.md from the dataclasses of the settings
	$(BIN)/python -m bepa_torchrl.experiment.settings

docs: $(call extras,docs)   ## the documentation's site, in build/site (strict: a broken link is an error)
	$(BIN)/python -m mkdocs build --strict

wheel:           ## builds the wheel, installs it into an empty environment and uses it from an empty folder
	PYTHON="$(PYTHON)" UV="$(UV)" scripts/check_wheel.sh

bench: $(call extras,test)  ## each prints a ratio against a named baseline of the same run
	$(BIN)/python -m benchmarks.sim_speed
	$(BIN)/python -m benchmarks.log_prob_memory

bench-desktops: $(call extras,test+guest+official-eval)  ## real desktops: reset, step, memory, faults (WRITE=--write keeps the tables)
	$(BIN)/osworld-gym install-official
	$(BIN)/python -m benchmarks.desktops $(WRITE)
	$(BIN)/python -m benchmarks.faults $(WRITE)
	$(BIN)/python -m benchmarks.official_controller $(WRITE)

BASE ?= tiny_plans
results: $(call extras,test)  ## the comparison of methods from a base policy, BASE=NAME_OR_FOLDER OPTIONS="--part core": gate, what is missing of the search and the runs, docs/results.md (core: hours, all: days; resumable)
	$(BIN)/python -m recipes.study --base $(BASE) $(OPTIONS)

results-terse: $(call extras,test)  ## the same from the first base policy, docs/history/results-terse.md
	$(BIN)/python -m recipes.study --bed terse $(OPTIONS)

tiny: $(call extras,bepa)   ## rebuilds the tiny checkpoint, the base policy (hours; resumable)
	$(BIN)/python -m recipes.tiny

# checkpoint of the first of its two trainings
FIRST = build/tiny-free-first
$(FIRST)/manifest.json: | $(call extras,bepa)
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m recipes.tiny --wording free --episodes 0 --state $(FIRST).pt --out $(FIRST)

tiny-free: $(FIRST)/manifest.json  ## rebuilds the checkpoint with free words: two trainings, 3 hours on two cores; resumable
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m recipes.tiny --wording free --again $(FIRST) --state build/$@.pt

tiny-plans: $(FIRST)/manifest.json  ## the same with more plans in the second training
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m recipes.tiny --wording free --again $(FIRST) --plans --state build/$@.pt

tiny-local: $(call extras,bepa+guest)  ## records the suite varied (scripts/apt-packages.txt), trains the policy of real desktops
	$(BIN)/bepa record build/recordings --style native --style expert --seeds 12
	$(BIN)/bepa record build/recordings --seeds 40  # native only: fewer seeds lack some of the screens' palettes
	$(BIN)/python -m recipes.tiny_local --threads 2

clean:           ## removes .venv and build
	rm -rf $(VENV) $(VLLM_VENV) build *.egg-info
