# Everything sets itself up: a virtual environment in this folder, wheels only.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test contract-tests lint protos evaluate benchmarks clean

demo: $(VENV)/.ready
	$(BIN)/python examples/demo.py --out out/demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not alone" --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest -m alone

# The API's contract against a server that runs: the sample city's models, on SERVER (gRPC) and REST.
contract-tests: $(VENV)/.ready
	@test -n "$(SERVER)" || { echo "error: tell the server: make contract-tests SERVER=127.0.0.1:8500 [REST=127.0.0.1:8501]"; exit 2; }
	$(BIN)/python -m pytest tests/contracts/test_serving_api.py --server "$(SERVER)" $(if $(REST),--rest "$(REST)")

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Five demand seeds that training never saw: served policies against fixed-time plans.
evaluate: $(VENV)/.ready
	$(BIN)/python examples/evaluate.py

benchmarks: $(VENV)/.ready
	$(BIN)/python -m benchmarks.controller_import
	$(BIN)/python -m benchmarks.session
	$(BIN)/python -m benchmarks.unary_predict
	$(BIN)/python -m benchmarks.concurrent_callers
	$(BIN)/python -m benchmarks.many_models
	$(BIN)/python -m benchmarks.server_memory
	$(BIN)/python -m benchmarks.control_loop
	$(BIN)/python -m benchmarks.controller_memory
	$(BIN)/python -m benchmarks.fleet
	$(BIN)/python -m benchmarks.bulk_export

protos: $(VENV)/.ready
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. protos/*.proto
	$(BIN)/python -m protos.write_descriptors

$(VENV)/.ready: pyproject.toml
	@echo "setting up $(VENV); this downloads TensorFlow and SUMO once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --editable '.[all]' --config-settings editable_mode=compat
	@touch $@

clean:
	rm -rf out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
