# Every target sets up what it needs, in an empty environment.  PYTHON, VENV and PYTEST_ARGS may be overridden.
PYTHON ?= python3
VENV   ?= .venv
comma  := ,
BIN    := $(VENV)/bin
PYTEST_ARGS ?=

# What the native part and the generated messages are built from, and what is copied: a change here means a new installation.
NATIVE := pyproject.toml CMakeLists.txt $(shell find gpukernel -name '*.proto' -o -name 'CMakeLists.txt' -o -name '*.cmake' \
            -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -path '*/codegen/*.py' -o -path '*/codegen/calls.txt') \
          $(shell find labextension/built -type f) $(wildcard build/openssl/installed/lib64/libssl.a)

# The simulated GPU's instruction handlers are compiled once per level of x86-64.  Packages and tests have every level; a
# first `make demo` compiles this machine's only, or it would take a minute longer.
has = $(if $(filter-out $(shell grep -m1 '^flags' /proc/cpuinfo),$(1)),,yes)
LEVEL := $(if $(call has,avx512f avx512bw avx512cd avx512dq avx512vl),4,$(if $(call has,avx2 bmi2 fma f16c),3,2))
LEVELS_FOR_demo = $(if $(wildcard $(VENV)/.test $(VENV)/.dev),,$(LEVEL))
LEVELS_FOR_hub-demo = $(LEVELS_FOR_demo)

# A wheel of this version in dist/ saves a demo the build and the compiler (`make wheels`).
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
WHEEL   := $(if $(wildcard $(VENV)/.test $(VENV)/.dev),,$(firstword $(wildcard dist/gpukernel-$(VERSION)-py3-none-manylinux*.whl)))
WHEEL_FOR_demo = $(WHEEL)
WHEEL_FOR_hub-demo = $(WHEEL)
# Python compiles what a demo imports; pip would compile 8,600 files first, for most of a minute.
PIP_FOR_demo     := --no-compile
PIP_FOR_hub-demo := --no-compile

.DEFAULT_GOAL := help
.PHONY: help demo hub test thorough quick test-one metrics model placed partitions crashes failover slurm kubernetes control-plane class crowd scale lint format docs bench gpu ptx oracle suites frameworks fuzz fuzzers sanitize animation screenshots labextension wheel wheels openssl minute images images-test system clean

help:  ## What can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## Run the demo notebook on a slice of a simulated V100, then open JupyterLab
	$(BIN)/gpukernel demo

hub: $(VENV)/.hub-demo  ## Run a real JupyterHub with simulated GPUs and a course of 50, to look at
	$(BIN)/python -m hub_spawner.demo

# Real servers, a browser and shells, where they may be installed; without them their tests say so and are skipped.
PACKAGES := postgresql chromium slurmctld slurmd slurm-client munge zsh fish man-db

test: $(VENV)/.test fuzzers  ## Run the test suite, but for what `make thorough` and longer targets run
	@deploy/system-packages.sh --optional $(PACKAGES)
	$(BIN)/python -m tools.run_tests -m "not thorough" $(PYTEST_ARGS)

thorough: $(VENV)/.test fuzzers  ## Run the tests that `make test` leaves out, since they take longest
	@deploy/system-packages.sh --optional $(PACKAGES)
	$(BIN)/python -m tools.run_tests -m thorough $(PYTEST_ARGS)

# One process a processor, files in one process: a minute after the build, where everything takes a quarter of an hour.
QUICK := tests/test_tree.py tests/common tests/pool/domain tests/pool/store tests/pool/scheduling/test_request_queue.py \
         tests/pool/leases/test_manager.py tests/native/simgpu_exec tests/remoting/test_worker.py

quick: $(VENV)/.test  ## Run a meaningful part of the tests in less than a minute (a pre-push hook, too)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not (slow or thorough or browser or hub or postgresql)" -k "not numba_program" \
	    $(QUICK) $(PYTEST_ARGS)

test-one: $(VENV)/.test  ## Run T=… alone: a file, a folder, or words of a test's name (make test-one T="resize and not hub")
	@test -n "$(T)" || { echo 'Say which test: make test-one T=tests/pool/domain, or T="resize and not hub".' >&2; exit 2; }
	@case "$(firstword $(subst ::, ,$(T)))" in */*) test -e "$(firstword $(subst ::, ,$(T)))" || \
	    { echo 'There is no $(firstword $(subst ::, ,$(T))); name a file or folder below tests/.' >&2; exit 2; };; esac
	$(BIN)/python -m pytest -x $(if $(wildcard $(firstword $(subst ::, ,$(T)))),$(T),-k "$(T)") $(PYTEST_ARGS)

metrics: $(VENV)/.test  ## Print the shape of the tree: folders, files, docstrings, imports (PLACES=1: what breaks a bound)
	$(BIN)/python -m tools.metrics $(if $(PLACES),--places) $(if $(SINCE),--since $(SINCE))

STEPS ?= 100000
model: $(VENV)/.test  ## Drive the pool with STEPS=100000 random steps against a model of it, on SQLite and PostgreSQL (an hour)
	GPUKERNEL_MODEL_STEPS=$(STEPS) GPUKERNEL_MODEL_PARTS=2 \
	    $(BIN)/python -m pytest -n 2 --dist loadgroup tests/pool/test_model.py --timeout=0 --show-capture=no $(PYTEST_ARGS)

PLACED_STEPS ?= 10000
placed: $(VENV)/.test  ## Mix the pool's leases and those of engines in PLACED_STEPS=10000 random steps, on SQLite and PostgreSQL (half an hour or more)
	GPUKERNEL_PLACED_STEPS=$(PLACED_STEPS) \
	    $(BIN)/python -m pytest -n 2 --dist loadgroup tests/pool/test_placed_model.py --timeout=0 --show-capture=no $(PYTEST_ARGS)

SCHEDULES ?= 10000
partitions: $(VENV)/.test  ## Hold no byte twice in SCHEDULES=10000 random schedules of partitions and clocks, in two processes (an hour)
	GPUKERNEL_PARTITION_SCHEDULES=$(SCHEDULES) GPUKERNEL_PARTITION_PARTS=2 \
	    $(BIN)/python -m pytest -n 2 --dist loadgroup tests/pool/test_partitions.py --timeout=0 -rP $(PYTEST_ARGS)

crashes: $(VENV)/.test  ## Kill the pool at every transaction boundary, and upgrades, on SQLite and PostgreSQL (ten minutes)
	GPUKERNEL_CRASH_STRIDE=1 GPUKERNEL_CRASH_MOMENTS=60 GPUKERNEL_CRASH_JOBS=2 \
	    $(BIN)/python -m pytest tests/pool/test_crashes.py tests/pool/store/test_interrupted_upgrade.py \
	    --timeout=0 -rP $(PYTEST_ARGS)

FAILOVER_SECONDS ?= 600
failover: $(VENV)/.test  ## Kill pools, PostgreSQL and agents at random under load, and print the times to recover (a quarter of an hour)
	@deploy/system-packages.sh --optional $(PACKAGES)
	$(BIN)/python -m tests.failover.chaos --seconds $(FAILOVER_SECONDS) $(FAILOVER_ARGS)

SCALE_ARGS ?= --pools 10 --gpus 10000 --students 100000
scale: $(VENV)/.test  ## Simulate a teaching day of 100,000 students in virtual time, three ways (hours), or SCALE_ARGS="--pools 2 --gpus 80 --students 800"
	$(BIN)/python -m benchmarks.scale $(SCALE_ARGS)

slurm: $(VENV)/.test  ## Lend GPUs of a real Slurm to a class of 50, give slices to 100 jobs, and let everything die (25 minutes)
	@deploy/system-packages.sh --optional $(PACKAGES) slurmdbd mariadb-server faketime
	GPUKERNEL_SLURM=1 $(BIN)/python -m pytest -rs tests/engines/slurm tests/hub/slurm $(PYTEST_ARGS)

CLAIMS ?= 1000
kubernetes: $(VENV)/.test  ## Let CLAIMS=1000 claims come and go at random while the controller is killed, without a cluster or with GPUKERNEL_TEST_KUBECONFIG (half an hour or more)
	GPUKERNEL_CLAIMS=$(CLAIMS) $(BIN)/python -m pytest -rP -m thorough tests/engines/kubernetes/test_churn.py $(PYTEST_ARGS)

control-plane: $(VENV)/.test  ## Try the DRA driver, and an administrator's hour, with Kubernetes' own API server, scheduler, controllers and kubelet: KUBERNETES=FOLDER has them, and etcd (an hour)
	@test -x "$(KUBERNETES)/kube-apiserver" || { echo 'Say where etcd, kube-apiserver, kube-scheduler and kube-controller-manager of Kubernetes 1.36 are: make control-plane KUBERNETES=/opt/kubernetes' >&2; exit 2; }
	GPUKERNEL_TEST_KUBERNETES="$(abspath $(KUBERNETES))" $(BIN)/python -m pytest -rs tests/engines/kubernetes tests/hub/test_claims.py $(PYTEST_ARGS)

class: $(VENV)/.test  ## Follow the page “A class of 50” on two machines that are namespaces, and sign all fifty students in
	GPUKERNEL_CLASS=50 $(BIN)/python -m pytest -rA --show-capture=no tests/e2e/test_class.py $(PYTEST_ARGS)

crowd: $(VENV)/.test  ## Put 200 honest students and 5 hostile ones into one pool, and compare the honest ones' waits (ten minutes)
	$(BIN)/python -m tests.attacks.crowd $(CROWD_ARGS)

# Fuzzers and sanitizers (docs/robustness.md): builds of their own, which nothing installs.
SECONDS   ?= 15
FUZZERS   := ptx images frames answers leases records
SANITIZE  ?= address,undefined
ATTACKED  := $(foreach one,arithmetic endless_kernels memory_cap threads wiretap worker_doors,tests/attacks/test_$(one).py)
SANITIZED := build/sanitize-$(subst $(comma),-,$(SANITIZE))

fuzz: fuzzers  ## Feed nonsense to everything in the native part that reads bytes of others, SECONDS=15 each
	@for name in $(FUZZERS); do PATH="$(abspath $(BIN)):$$PATH" tests/native/fuzz/run.sh $$name -max_total_time=$(SECONDS) || exit 1; done

# Those of the worker and of the shim take as long to build as all others, so `make test` leaves them to `make thorough`.
BUILT_FUZZERS = fuzzers
test: BUILT_FUZZERS = quick_fuzzers

# Not an error where Clang is missing: the tests that need them say so.
fuzzers: $(VENV)/.native
	@deploy/clang.sh >/dev/null 2>&1 || deploy/system-packages.sh --optional clang-19 libclang-rt-19-dev
	@if clang=$$(deploy/clang.sh); then \
	    CXX=$$clang $(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DGPUKERNEL_FUZZ=ON \
	        -DGPUKERNEL_FUZZ_STRICT=$(if $(STRICT),ON,OFF) \
	        -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" \
	        -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null && \
	    echo "Building the fuzzers: four to fifteen minutes the first time …" && $(BIN)/ninja -C build/fuzz --quiet $(BUILT_FUZZERS); fi

sanitize: $(VENV)/.native  ## Run the tests of the native part under SANITIZE=address,undefined (or thread)
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DGPUKERNEL_SANITIZE=$(SANITIZE) \
	    -DSIMGPU_LEVELS=3 -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null
	$(BIN)/ninja -C $(SANITIZED) --quiet
	$(BIN)/cmake --install $(SANITIZED) --prefix $(SANITIZED)/prefix >/dev/null
	tests/native/sanitized.sh $(SANITIZED)/prefix $(SANITIZE) $(BIN)/python -m pytest tests/remoting \
	    $(if $(filter thread,$(SANITIZE)),,tests/native $(ATTACKED)) $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.dev  ## Bring all code into the one style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

docs: $(VENV)/.dev  ## Build the documentation into site/, warnings as errors
	$(BIN)/python -m docs.in_pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.test  ## Measure, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

gpu: $(VENV)/.test  ## On a machine with an NVIDIA GPU: run tests/gpu and measure, and write docs/benchmarks-gpu.md
	$(BIN)/python -m benchmarks.gpu

COUNT ?= 100000
SEED  ?= 1
ptx: $(VENV)/.test  ## Compare what the simulated GPU takes for PTX with ptxas, on COUNT=100000 generated instructions and a twentieth as many modules (eight minutes)
	$(BIN)/python -m tests.native.simgpu_ptx.acceptance --count $(COUNT) --seed $(SEED)
	$(BIN)/python -m tests.native.simgpu_ptx.acceptance --modules --count $$(($(COUNT) / 20)) --seed $(SEED)

# Not fuzz's SECONDS: an hour unless it is given.
oracle: $(VENV)/.test  ## Run generated CUDA kernels on the simulated GPU and on the host's processor, and compare: SECONDS=3600 SEED=1
	$(BIN)/python -m tests.native.oracle.compare --seconds $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),3600) --seed $(SEED) $(ORACLE_ARGS)

suites: $(VENV)/.test  ## Run other people's test suites on a slice (an hour or two, and 4 GB of packages), or SUITE=pycuda alone
	$(BIN)/python -m tests.suites $(SUITE)

frameworks: $(VENV)/.test  ## Run frameworks from PyPI on a slice of a simulated H100 (4 GB of packages the first time)
	GPUKERNEL_FRAMEWORKS=1 $(BIN)/python -m pytest -rA --show-capture=no tests/frameworks $(PYTEST_ARGS)

animation: $(VENV)/.dev  ## Take the first page's animation again (needs Chromium)
	$(BIN)/python -m docs.animation

screenshots: $(VENV)/.dev  ## Take the pictures in docs/images again (needs Chromium)
	$(BIN)/python -m docs.screenshots
	$(BIN)/python -m docs.console_screenshots

labextension: $(VENV)/.dev labextension/node_modules  ## Build labextension/built from its source (needs Node; docs/jupyter.md says why it is committed)
	$(BIN)/python -m tools.typescript
	cd labextension && npx tsc && rm -rf built && PATH="$(abspath $(BIN)):$$PATH" jupyter-builder build .

labextension/node_modules: labextension/package-lock.json
	cd labextension && npm ci --no-audit --no-fund
	@touch $@

wheel: $(VENV)/.dev  ## Build a wheel for this machine into dist/
	$(BIN)/pip wheel --no-deps -w dist .

wheels: $(VENV)/bin/python  ## Build a wheel for every Linux with glibc 2.28 or newer, and an sdist, into dist/ (half an hour; WHEELS=--openssl-source FILE)
	$(BIN)/python -m tools.wheels $(WHEELS)

openssl: | $(VENV)/bin/python  ## Build the OpenSSL of the wheels for this checkout, where the system's is 3.0: copies over TLS take half (five minutes; OPENSSL_SOURCE=FILE)
	$(BIN)/python -m tools.openssl $(OPENSSL_SOURCE)

PYTHONS ?= python3.11 python3.12 python3.13 python3.14
minute:  ## Try the wheel in dist/ with each of PYTHONS='python3.11 python3.14 …', without compiler and Node: seconds to the demo's result
	$(PYTHON) tests/wheels/minute.py $(foreach one,$(PYTHONS),--python $(one)) dist/gpukernel-$(VERSION)-py3-none-manylinux*.whl

images: $(VENV)/.test  ## Build container images with buildah from the wheel in dist/: IMAGES="pool agent" BASE=NAME@sha256:…
	$(BIN)/python -m tools.images $(IMAGES) $(if $(BASE),--base $(BASE)) $(IMAGES_ARGS)

FRAMEWORKS ?= numba
images-test: $(VENV)/.test  ## Build the images, single-user ones of FRAMEWORKS="numba tensorflow jax pytorch", twice, and run them with podman (as root; minutes and gigabytes)
	@deploy/system-packages.sh --optional buildah podman runc debootstrap
	GPUKERNEL_IMAGES="$(FRAMEWORKS)" $(BIN)/python -m pytest -rs -s tests/deploy/images $(PYTEST_ARGS)

clean:  ## Remove everything that was built
	rm -rf $(VENV) build dist site

# --- environments: one stamp an extra, each an editable installation of this checkout ---------------------------
$(VENV)/bin/python: | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo $(VENV)/.hub-demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: $(NATIVE) | $(VENV)/bin/python
	@echo "Installing gpukernel with its '$*' extra into $(VENV): a few minutes the first time …"
	$(BIN)/pip install --quiet $(PIP_FOR_$*) $(if $(WHEEL_FOR_$*),'$(WHEEL_FOR_$*)[$*]',\
	    --config-settings='cmake.define.SIMGPU_LEVELS=$(or $(LEVELS_FOR_$*),2;3;4)' --editable '.[$*]')
	@touch $@

# What builds the native part outside of pip.
$(VENV)/.native: $(VENV)/.test
	$(BIN)/pip install --quiet 'cmake>=3.25' 'ninja>=1.11' 'grpcio-tools==1.76.*' \
	    'nvidia-nvml-dev-cu12==12.9.*'
	@touch $@

# A compiler, unless a wheel is enough, and Python with venv: installed where that is allowed, named where it is not.
DEMOS := demo hub hub-demo
system:
	@deploy/system-packages.sh $(if $(and $(WHEEL),$(filter $(DEMOS),$(MAKECMDGOALS))),--no-compiler)
