# Two commands are enough: `make demo` shows lossbench, `make test` tests it. Both set up by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
OUT    ?= results/runs

.PHONY: demo test tested test-all docs wheel pictures test-guest test-guest-clock test-guest-pair test-guest-full setup check clean bars fuzz soak wheelhouse
# Where this is set (many containers), every process would compile our hundreds of files anew: half a second a command.
unexport PYTHONDONTWRITEBYTECODE
# `make wheelhouse PYTHON=3.12` names the version that the wheels are for, everywhere else PYTHON is a program.
INTERPRETER := $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON))

demo: $(VENV)/.ready
	$(BIN)/lossbench run quickstart --out $(OUT) --html results/demo/report.html --plots results/demo

# What decides: every claim once, side by side, each worker with a /run of its own (tests/worker). WORKERS=1: one by one.
WORKERS ?= $(shell echo $$((3 * $$(nproc))))
test: $(VENV)/.dev
	$(MAKE) -j2 check tested

tested:
	WORKER_PYTHON=$(BIN)/python $(BIN)/python -m pytest -m "not full and not quiet" --ignore tests/ground/test_architecture.py --tx "$(WORKERS)*popen//python=tests/worker" --dist worksteal

# Everything, hours: every form of every claim, those that need a quiet machine, the guests, fuzz, drills and soak. In slices, resumed
# where it stopped: make test-all SLICES="net guest-clock"; see tests/bench/all.py --help.
SLICES ?=
test-all: $(VENV)/.dev
	$(BIN)/python tests/bench/all.py $(SLICES)

# netem and prio on a stock kernel under QEMU, in one boot; -clock: a boot with a clock that counts instructions, for delays;
# -full: whatever can run there, more than an hour without KVM. What is about wall-clock seconds (Ctrl-C after 0.8 s, a
# window of 0.2 s) is left to `make test`. What a guest would have to compile is compiled before: it sees these files.
GUEST = $(BIN)/lossbench vm run --writable results --timeout-s
PYTEST_GUEST = -- $(BIN)/python -m pytest -p no:cacheprovider -q --timeout 1200
TIER = $(addprefix tests/,net/test_conformance.py net/test_netem.py net/test_offloads.py net/test_shaping.py nic/test_nic.py cli/test_command.py)
COMPILED = $(BIN)/python -m compileall -q harness workloads
test-guest: $(VENV)/.dev
	$(COMPILED)
	$(GUEST) 2700 $(PYTEST_GUEST) -m "tier and not full" $(TIER)

test-guest-clock: $(VENV)/.dev
	$(COMPILED)
	$(GUEST) 3600 --instruction-clock $(PYTEST_GUEST) -m clock --timeout 3000 tests

# Two guests joined by a wire: a lab of two stock kernels. PAIR=1: what takes some minutes; full: all of it.
PAIR ?= full
test-guest-pair: $(VENV)/.dev
	$(COMPILED)
	LOSSBENCH_PAIR=$(PAIR) $(BIN)/python -m pytest -p no:cacheprovider -q --timeout 1800 -m pair tests

test-guest-full: $(VENV)/.dev
	$(COMPILED)
	$(GUEST) 14400 $(PYTEST_GUEST) -m "netns and not clock and not wallclock and not training" --timeout 3000 tests

# The docs as a site, in build/docs; a link that leads nowhere ends it. MkDocs with mkdocs-material reads the same file.
docs: $(VENV)/.dev
	$(BIN)/python -m zensical build -f mkdocs.yml --clean --strict

# The pages and the figure that README and docs show; STORED="quickstart=FOLDER ...": of that run instead of a new one.
pictures: $(VENV)/.dev
	$(BIN)/python tests/bench/pictures.py $(STORED)

setup: $(VENV)/.dev

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/ground/test_architecture.py

# Broken input, and runs that are killed: by the clock; their own help says how to ask for more. Soaked with a /run of its
# own: what stands beside it on the machine is not blamed on it.
FUZZ_S   ?= 60
SOAK_MIN ?= 20
fuzz: $(VENV)/.dev
	$(BIN)/python tests/bench/fuzz.py --seconds $(FUZZ_S)

soak: $(VENV)/.dev
	WORKER_PYTHON=$(BIN)/python tests/worker tests/bench/soak.py --minutes $(SOAK_MIN)

# The figures behind the promises of README and docs; minutes, not part of the tests.
bars: $(VENV)/.dev
	$(BIN)/python tests/bench/bars.py

# `make wheel`: lossbench alone, in $(DIST). What an older build left in build/lib would be in it, too.
WHEEL = rm -rf build/lib build/bdist.* && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps
DIST ?= dist
wheel: $(VENV)/bin/python
	$(WHEEL) --wheel-dir $(DIST) .
	@ls $(DIST)/lossbench-$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' harness/__init__.py)-*.whl

# For machines without a way out that have torch already: everything else as files. There:
#   pip install --no-index --find-links wheelhouse 'lossbench[report,text]'
WHEELHOUSE ?= wheelhouse
PLATFORM   ?= manylinux2014_$(shell uname -m)
ARCH        = $(patsubst manylinux2014_%,%,$(PLATFORM))
wheelhouse: $(VENV)/.ready
	mkdir -p $(WHEELHOUSE)
	$(WHEEL) --wheel-dir $(WHEELHOUSE) .
	$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*[r for r in p["dependencies"] + p["optional-dependencies"]["report"] + p["optional-dependencies"]["text"] if not r.startswith("torch")], sep="\n")' > $(WHEELHOUSE)/requirements.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest $(WHEELHOUSE) --only-binary :all: -c constraints.txt -r $(WHEELHOUSE)/requirements.txt \
	  $(foreach tag,manylinux2014 manylinux_2_17 manylinux_2_27 manylinux_2_28,--platform $(tag)_$(ARCH)) --implementation cp $(if $(filter 3.%,$(PYTHON)),--python-version $(PYTHON))
	@echo "there: pip install --no-index --find-links $(WHEELHOUSE) 'lossbench[report,text]'"

$(VENV)/bin/python:
	$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lossbench needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(INTERPRETER) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv module: apt-get install python3-venv"; exit 1; }

$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report,text]'
	touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
