# Every target creates .venv on first use; packages are installed from wheels only.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --only-binary :all: --constraint constraints.txt

.PHONY: demo live test slow contract-tests lint lines docs commands-page protos constraints evaluate benchmarks \
	long-benchmarks clean

demo: $(VENV)/.ready
	@$(BIN)/python examples/demo.py --out out/demo

# The sample city in real time, in a browser: prints the page's address.
live: $(VENV)/.ready
	@$(BIN)/python examples/live.py --out out/live

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not slow" --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Minutes each: the wheel in a bare environment, training, long fault runs.
slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m "slow and not alone" --timeout 1500 --numprocesses 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "slow and alone" --timeout 1500

# The API's contract against a running server with the sample city's models: SERVER (gRPC) and REST.
contract-tests: $(VENV)/.ready
	@test -n "$(SERVER)" || { echo "error: SERVER is missing; pass make contract-tests SERVER=127.0.0.1:8500 [REST=127.0.0.1:8501]"; exit 2; }
	$(BIN)/python -m pytest tests/contracts/test_serving_api.py --server "$(SERVER)" $(if $(REST),--rest "$(REST)")

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Logical lines, as radon counts them: of the product without generated code, of tests, of benchmarks and examples.
PRODUCT := city controller environment evaluation export greenserve pretraining protos records rollout rounds serving signals \
	simulation training
lines: $(VENV)/.ready
	@for folders in "$(PRODUCT)" tests "benchmarks examples"; do \
		count=$$($(BIN)/radon raw --summary --exclude "*_pb2.py" $$folders | sed -n '/\*\* Total \*\*/,$$s/^ *LLOC: //p'); \
		echo "$$count logical lines: $$folders"; \
	done

docs: $(VENV)/.ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir out/site

# The tables of docs/reference/commands.md, from the commands' parsers.
commands-page: $(VENV)/.ready
	$(BIN)/python -m greenserve.commands_page

# Demand that training never saw: served policies beside fixed, actuated and max-pressure control.
evaluate: $(VENV)/.ready
	$(BIN)/python examples/evaluate.py

benchmarks: $(VENV)/.ready
	$(BIN)/python -m benchmarks.controller_import
	$(BIN)/python -m benchmarks.session
	$(BIN)/python -m benchmarks.unary_predict
	$(BIN)/python -m benchmarks.concurrent_callers
	$(BIN)/python -m benchmarks.rest_requests
	$(BIN)/python -m benchmarks.many_models
	$(BIN)/python -m benchmarks.server_memory
	$(BIN)/python -m benchmarks.control_loop
	$(BIN)/python -m benchmarks.record
	$(BIN)/python -m benchmarks.controller_memory
	$(BIN)/python -m benchmarks.fleet
	$(BIN)/python -m benchmarks.bulk_export
	$(BIN)/python -m benchmarks.large_city
	$(BIN)/python -m benchmarks.environment
	$(BIN)/python -m benchmarks.training_speed
	$(BIN)/python -m benchmarks.live_page
	$(BIN)/python -m benchmarks.record_page
	$(BIN)/python -m benchmarks.page_frames
	$(BIN)/python -m benchmarks.street_fleet

# Hours: trainings on RESCO's streets against stable-baselines3's, and the policy for any street.
long-benchmarks: $(VENV)/.ready
	rm -f out/resco.csv
	$(BIN)/python -m benchmarks.time_to_policy --limit 600 --training-seeds 3
	$(BIN)/python -m benchmarks.resco --results out/resco.csv
	$(BIN)/python -m benchmarks.resco --results out/resco.csv --all-red default
	$(BIN)/python -m benchmarks.resco --results out/resco.csv --vary-demand
	$(BIN)/python -m benchmarks.road_users
	$(BIN)/python -m benchmarks.libraries
	$(BIN)/python -m benchmarks.control_loop --dialect street --without-sumo-rl --rounds 1 --street ingolstadt21 --street thousand

protos: $(VENV)/.ready
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. protos/*.proto
	$(BIN)/python -m protos.write_descriptors

# Every version that the targets above install, resolved anew.
constraints:
	$(PYTHON) -m venv $(VENV)-uv
	$(VENV)-uv/bin/python -m pip install --disable-pip-version-check --only-binary :all: uv
	$(VENV)-uv/bin/uv pip compile pyproject.toml --extra all --python-version 3.11 --only-binary :all: --no-emit-index-url \
		--no-annotate --upgrade --quiet --custom-compile-command "make constraints" --output-file constraints.txt
	rm -rf $(VENV)-uv

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV): TensorFlow, SUMO and the test tools are downloaded once (3 to 4 GB, about five minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -qq setuptools
# without -qq: pip names each package that it downloads, and shows bars on a terminal
	@$(PIP) --no-build-isolation --editable '.[all]' --config-settings editable_mode=compat
	@touch $@

clean:
	rm -rf out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
