"""Every operator and bound of signals/safety is changed once; each change fails a test or is listed as equivalent."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.signals.safety.mutants import mutants_of

SOURCE = '''"""Docstring."""
BOUND_S: float = 2.0


def _is_due(age: float, state: str, others: list[str]) -> bool:
    for other in others:
        if not other:
            continue
    return age >= BOUND_S and "y" in state or any(others)
'''

CHANGES = [
    "rules: BOUND_S: float = 2.0 -> BOUND_S: float = 2.2",
    "rules._is_due: not other -> other",
    "rules._is_due: if not other: continue -> if not other: break",
    "rules._is_due: age >= BOUND_S and 'y' in state or any(others) -> (age >= BOUND_S and 'y' in state) and "
    "any(others)",
    "rules._is_due: age >= BOUND_S and 'y' in state -> age >= BOUND_S or 'y' in state",
    "rules._is_due: age >= BOUND_S -> age > BOUND_S",
    "rules._is_due: age >= BOUND_S -> age < BOUND_S",
    "rules._is_due: 'y' in state -> 'y' not in state",
    "rules._is_due: 'y' in state -> '' in state",
    "rules._is_due: any(others) -> not any(others)",
    "rules._is_due: any(others) -> all(others)",
]


def test_every_operator_and_bound_is_changed_once(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text(SOURCE)
    assert [mutant.key for mutant in mutants_of(path)] == CHANGES
    for k, change in enumerate(CHANGES):
        mutant = mutants_of(path)[k]
        assert mutant.compile().co_code and mutant.key == change
    assert path.read_text() == SOURCE


def test_equal_changes_of_a_function_are_numbered(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text("def add(a, b):\n    return a + b, a + b\n")
    assert [mutant.key for mutant in mutants_of(path)] == ["rules.add: a + b -> a - b", "rules.add: a + b -> a - b (2)"]


@pytest.mark.slow
def test_every_mutant_is_killed_or_equivalent(tmp_path):
    command = [sys.executable, "-m", "tests.signals.safety.mutations"]
    # a folder of this test, so that nothing stays if the run is killed
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
