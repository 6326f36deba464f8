# Every target may be repeated; an interrupted `make venv` goes on where it stopped.
.PHONY: venv demo demo-llm test test-all lint bench clean

PYTHON ?= $(shell for p in python3.11 python3.12; do \
	"$$p" -c 'import sys' >/dev/null 2>&1 && { command -v "$$p"; break; }; done)
BIN := .venv/bin
LOCK := requirements/cpu.lock
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

venv: .venv/.stamp

# torch's +cpu build first: from the configured indexes, else from PyTorch's own index.
.venv/.stamp: $(LOCK) setup.py
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or 3.12 is needed (set PYTHON=...)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	grep '^torch==' $(LOCK) > .venv/torch.txt
	$(PIP) install -q --no-deps -r .venv/torch.txt || \
		$(PIP) install --no-deps --index-url $(TORCH_INDEX) -r .venv/torch.txt
	$(PIP) install -q --no-deps -r $(LOCK)
	$(PIP) install -q --no-deps --no-build-isolation -e .
	touch $@

demo: venv
	$(BIN)/python recipes/countdown_tiny/demo.py $(if $(ARMS),--arms "$(ARMS)")

# a real pretrained chat model without a GPU; see recipes/arithmetic_smollm2/README.md
demo-llm: venv
	$(BIN)/python recipes/arithmetic_smollm2/prepare.py
	@for arm in ds paper; do bash slurm/train.sbatch arithmetic_smollm2 $$arm || exit 1; done
	$(BIN)/sara report --out runs/arithmetic_smollm2/report $(foreach arm,ds paper,$(arm)=runs/arithmetic_smollm2/$(arm)/seed0)

test: venv
	$(BIN)/python -m pytest tests -m "not full"

# with every algorithm, preset and option trained for real: about half an hour more
test-all: venv lint
	$(BIN)/python -m pytest tests

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: venv
	@for f in tests/benchmarks/bench_*.py; do echo "== $$f"; $(BIN)/python "$$f" || exit 1; done

clean:
	rm -rf .venv .cache build dist outputs .test-runs ./*.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
