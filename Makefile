# Everything a developer or CI runs. PYTHON is only used to make the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# A test module's servers and sessions serve all its tests: modules are what processes share out. Tests wait for servers for
# a good part of their time, so there is one process more than cores.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= -n $(shell expr $(CORES) + 1) --maxprocesses 4 --dist loadfile
INPUT ?=
SECONDS ?= 60
MINUTES ?= 2
SPEED ?= 0.5
SEEDS ?= 100000
ROOM ?= group
TARGET ?=

# Where this is set, each process of the tests and benchmarks would compile the package anew: half of a daemon's start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup gssapi help demo test test-all test-long mutants fuzz fuzz-native torture soak check audit sbom format docs bench bench-check dist spark-package clean lock native-wheels

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "consumerd needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Release builds of the native codec: it is for speed alone. What cannot be built is not needed either.
NATIVE := $(wildcard native/src/*.rs native/src/*/*.rs) native/Cargo.toml native/crates.lock native/pyproject.toml
$(VENV)/.native: $(VENV)/.installed $(NATIVE) requirements/native-build.txt
	@if ! command -v cargo >/dev/null; then \
		echo "the native codec is not built, because there is no cargo: the pure codec runs"; \
	elif $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/native-build.txt \
		&& $(BIN)/python native/lock.py restore \
		&& PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
			--no-build-isolation --force-reinstall ./native; then \
		touch $@; \
	else \
		echo "the native codec is not built, because its build failed (see above): the pure codec runs"; \
	fi

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 16

setup: $(VENV)/.installed $(VENV)/.native  ## create .venv from the pinned, hashed constraints; build native/ where cargo is

gssapi: setup  ## add the extra `gssapi` to .venv (needs a C compiler and Kerberos' headers: libkrb5-dev)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/gssapi-build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements/gssapi.txt

demo: setup  ## a ZooKeeper, two brokers, three daemons, two deaths, a count of every message, and tables of them
	@$(BIN)/consumerd demo $(if $(INPUT),--input "$(INPUT)")

# A dynamic archive of Java's class-data sharing: without it, each JVM of Spark takes five seconds longer.
$(VENV)/spark-classes.jsa: $(VENV)/.installed tests/support/spark_jvm.py | $(VENV)/.native
	@$(BIN)/python -m tests.support.spark_jvm >$(VENV)/spark-classes.log 2>&1 || \
		echo "Spark's classes are not shared, which makes its tests slower: see $(VENV)/spark-classes.log"

# The same for the Kafka that most tests start.
$(VENV)/kafka-classes.jsa: $(VENV)/.installed tests/support/kafka_classes.py tests/support/kafka.py | $(VENV)/.native
	@$(BIN)/python -m tests.support.kafka_classes >$(VENV)/kafka-classes.log 2>&1 || \
		echo "Kafka's classes are not shared, which makes its tests slower: see $(VENV)/kafka-classes.log"

test: setup  ## nearly everything in 5 minutes on two cores: all tests but those with the marker `slow`
	$(BIN)/python -m pytest $(WORKERS) -m "not slow and not long" $(PYTEST_ARGS)

test-all: setup $(VENV)/spark-classes.jsa $(VENV)/kafka-classes.jsa  ## those of `make test`, and real brokers, Spark, processes that are killed: 20 minutes
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

test-long: setup  ## all tests, against all releases of Kafka, with more simulated and tortured runs; takes hours
	CONSUMERD_LONG_SECONDS=$(SECONDS) CONSUMERD_LONG_SEEDS=$(SEEDS) $(BIN)/python -m pytest $(WORKERS) -m "long or not long" $(PYTEST_ARGS)

# Never built from source: that needs a compiler of its own.
$(VENV)/.fuzz: $(VENV)/.installed requirements/fuzz.txt
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
		-r requirements/fuzz.txt >$(VENV)/fuzz.log 2>&1; then \
		touch $@; \
	else \
		echo "make fuzz needs atheris, which cannot be installed for this Python or machine: see $(VENV)/fuzz.log"; exit 1; \
	fi

fuzz: setup $(VENV)/.fuzz  ## coverage-guided fuzzing of a parser (TARGET=name), or of each, for SECONDS each
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(TARGET)

# The native codec with the fuzzer's counters, and with the checks of overflow that a release leaves out. On stable Rust.
FUZZED_NATIVE := dist/fuzz-native/consumerd_native.abi3.so
FUZZED_TARGETS = v07-messages v08-records $(addprefix native-,sets records lines archive encoding gzip snappy lz4 zstd)
COUNTERS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Coverflow-checks=on -Cdebug-assertions=on
$(FUZZED_NATIVE): $(NATIVE) | $(VENV)/.native
	$(BIN)/python native/lock.py restore
	HOST=$$(rustc -vV | sed -n 's/^host: //p') && CARGO_PROFILE_RELEASE_LTO=false RUSTFLAGS="$(COUNTERS)" \
		cargo build --quiet --release --locked --manifest-path native/Cargo.toml --features pyo3/extension-module \
		--target-dir dist/fuzz-native/target --target $$HOST && \
		cp dist/fuzz-native/target/$$HOST/release/libconsumerd_native.so $@

fuzz-native: setup $(VENV)/.fuzz $(FUZZED_NATIVE)  ## the same with coverage of the native codec, which needs cargo (Linux)
	$(BIN)/python -m tests.fuzz.run --native $(dir $(FUZZED_NATIVE)) --seconds $(SECONDS) $(or $(TARGET),$(FUZZED_TARGETS))

torture: setup  ## faults at random on real processes for MINUTES; counts what was lost, repeated, without an owner
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) $(if $(PARTITIONS),--partitions $(PARTITIONS)) \
		$(if $(MEMBERS),--members $(MEMBERS)) $(if $(SEED),--seed $(SEED)) $(TORTURE_ARGS)

soak: MINUTES = 60
soak: setup  ## a long run for MINUTES at SPEED of full speed, a fault every ten seconds: memory, tasks, every message counted
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --speed $(SPEED) $(if $(RATE),--rate $(RATE)) \
		$(if $(SEED),--seed $(SEED)) $(SOAK_ARGS)

mutants: setup  ## changes of ROOM or MODULE that no fast test of the room notices (LIMIT=n of them, chosen by SEED)
	$(BIN)/python -m tests.mutants $(if $(MODULE),--module $(MODULE),--room $(ROOM)) \
		$(if $(LIMIT),--limit $(LIMIT)) $(if $(SEED),--seed $(SEED)) $(if $(AGAIN),--again "$(AGAIN)") $(if $(KEYWORDS),-k "$(KEYWORDS)")

check: setup  ## ruff, codespell, the phrases of docs/style.md, tests that check nothing, the shape of the code, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m pytest -q tests/unit/test_prose.py tests/unit/test_assertions.py \
		tests/unit/test_architecture.py tests/unit/test_documents.py::test_numbers_are_those_of_the_code \
		tests/unit/test_documents.py::test_tables_of_options_are_those_of_the_code \
		tests/unit/service/config/test_defaults.py::test_every_keyword_of_the_library_refers_to_its_key \
		tests/unit/service/config/test_defaults.py::test_settings_of_a_client_refer_to_the_keys \
		tests/unit/service/config/test_defaults.py::test_keywords_have_the_choices_of_their_keys
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.audit: $(VENV)/.installed requirements/audit.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	touch $@

AUDITED := core image spark dev
audit: $(VENV)/.audit  ## bandit; known vulnerabilities of the pinned requirements, where their data can be reached
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive consumerd pyspark_consumerd
	$(BIN)/python deploy/audit.py $(foreach name,$(AUDITED),requirements/$(name).txt)

sbom: $(VENV)/.audit  ## dist/consumerd-VERSION.cdx.json: what an installation of the wheel in dist consists of (CycloneDX)
	$(BIN)/python deploy/sbom.py --tools $(BIN) --wheels dist --requirements requirements/core.txt

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## the defaults in the documents; dist/site: the documentation as pages that need no network; warnings are errors
	$(BIN)/python docs/defaults.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir dist/site

$(VENV)/.bench: $(VENV)/.installed requirements/bench.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	touch $@

bench: setup $(VENV)/.bench  ## speed, as ratios against peers in the same run: a table, and a record with --json FILE in BENCH_ARGS
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: setup $(VENV)/.bench  ## a quick run; names what is slower than in benchmarks/recorded.json by more than noise
	$(BIN)/python -m benchmarks --quick --check $(BENCH_ARGS)

dist: setup  ## dist: sdist and wheel, built and checked as RELEASING.md says
	rm -rf dist/consumerd-*
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m pytest tests/integration/test_packaging.py tests/unit/test_wheel.py $(PYTEST_ARGS)

# `maturin` and its zig in an environment of their own: in .venv, zig would serve `make setup`, too.
WHEEL_TOOLS := build/wheel-tools
$(WHEEL_TOOLS)/.installed: requirements/native-wheels.txt
	$(PYTHON) -m venv --clear $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/native-wheels.txt
	touch $@

native-wheels: setup $(WHEEL_TOOLS)/.installed  ## dist: sdist and wheels of native/ for each Linux whose Rust target is installed, checked
	rm -rf dist/consumerd_native-*
	$(WHEEL_TOOLS)/bin/python -m native.wheels --out dist $(if $(PLATFORMS),--only $(PLATFORMS))
	CONSUMERD_NATIVE_WHEELS=dist $(BIN)/python -m pytest -m "long or not long" tests/integration/test_native_wheels.py $(PYTEST_ARGS)

spark-package: setup  ## dist/spark: the source, and an environment that Spark unpacks beside executors
	$(BIN)/python deploy/spark/package.py -o dist/spark

clean:
	rm -rf $(VENV) native/target dist build .mypy_cache .ruff_cache .pytest_cache

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
# Of all machines that develop: `gssapi` is compiled against Kerberos' headers, and apart.
EXTRAS := archive avro embedded http iceberg json lake metrics msk-iam otel postgres schema-registry spark
lock:  ## resolve the requirements anew (needs uv); hashes only, no index lines
	$(COMPILE) $(addprefix --extra ,$(EXTRAS)) --group dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt pyproject.toml -o requirements/core.txt
	$(COMPILE) -c requirements/dev.txt --extra http --extra metrics pyproject.toml -o requirements/image.txt
	$(COMPILE) -c requirements/dev.txt --extra spark pyproject.toml -o requirements/spark.txt
	$(COMPILE) -c requirements/dev.txt --group bench pyproject.toml -o requirements/bench.txt
	$(COMPILE) -c requirements/dev.txt --group audit -o requirements/audit.txt
	$(COMPILE) -c requirements/dev.txt --group fuzz -o requirements/fuzz.txt
	$(COMPILE) -c requirements/dev.txt requirements/build.in -o requirements/build.txt
	$(COMPILE) -c requirements/dev.txt requirements/native-build.in -o requirements/native-build.txt
	$(COMPILE) -c requirements/dev.txt requirements/native-wheels.in -o requirements/native-wheels.txt
	$(COMPILE) -c requirements/dev.txt requirements/native-test.in pyproject.toml -o requirements/native-test.txt
	$(COMPILE) -c requirements/dev.txt --extra gssapi pyproject.toml -o requirements/gssapi.txt
	$(COMPILE) -c requirements/dev.txt requirements/gssapi-build.in -o requirements/gssapi-build.txt
