"""Mutation tests of signals/safety: every operator and bound is changed once, and some test must fail.

    python -m tests.signals.safety.mutations [--list] [--processes N] [MODULE | TEXT ...]

One process imports what the tests need, except for signals and tests, and forks for each
mutant. The child compiles the mutant in memory, gives it to the first import of its
module, and runs the tests from the fastest to the slowest until one fails. Nothing is
written into the working copy.
"""

import argparse
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis
import pytest

import city.config
import city.network
import protos.policy_pb2  # noqa: F401 - imported before the first fork
from tests.signals.safety.equivalent_mutants import EQUIVALENT_MUTANTS
from tests.signals.safety.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[3]
SAFETY = ROOT / "signals" / "safety"
TESTS = ("tests/signals/safety", "tests/signals/test_intersection.py")
OPTIONS = ("-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "--hypothesis-profile=mutations")
TIME_LIMIT_FACTOR, MIN_TIME_LIMIT_S = 8, 30
"""A mutant's tests may take this many times as long as without a change: a mutant may loop for ever."""
MAX_MEMORY_BYTES = 4 << 30
STATES = 2000
"""Instead of a million states under adversarial requests."""


class TestOrder:
    """Pytest plugin: sorts tests by their durations, measures them, and leaves out what depends on the machine."""

    def __init__(self, durations_s: dict[str, float]) -> None:
        self.expected_s, self.durations_s = durations_s, dict[str, float]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # real networks are not everywhere, and mutants must survive on every machine alike
        sys.modules["tests.conftest"].SHARED = Path(os.devnull)
        sys.modules["tests.signals.safety.test_monitor"].STATES = STATES
        items.sort(key=lambda item: self.expected_s.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations_s[report.nodeid] = self.durations_s.get(report.nodeid, 0.0) + report.duration


class MutantImporter:
    """Import hook: gives compiled code to the import of one module."""

    def __init__(self, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = ".".join(path.relative_to(ROOT).with_suffix("").parts), path, code

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        loader = SourceFileLoader(name, str(self.path))
        loader.get_code = lambda fullname: self.code
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


def run_tests(mutant: Mutant | None, durations_s: dict[str, float], folder: Path) -> tuple[int, dict[str, float]]:
    """Run the tests in this process with a mutant in place of its module. Returns pytest's exit code and durations in s."""
    if mutant is not None:
        sys.meta_path.insert(0, MutantImporter(mutant.path, mutant.compile()))
    order = TestOrder(durations_s)
    return pytest.main([*OPTIONS, f"--basetemp={folder / str(os.getpid())}", *TESTS], plugins=[order]), order.durations_s


def fork(task: Callable[[], int], time_limit_s: float) -> int:
    """Run a task in a forked process without output, which ends at the time limit. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # the system ends the process, even in a loop and if the parent is gone
        signal.setitimer(signal.ITIMER_REAL, time_limit_s)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(task())
    finally:
        os._exit(code)


def measure(folder: Path) -> dict[str, float]:
    """Durations of the tests in s, by node id. Exits if they do not pass without a change."""
    path = folder / "durations.json"

    def task() -> int:
        code, durations_s = run_tests(None, {}, folder)
        path.write_text(json.dumps(durations_s))
        return code

    _, status = os.waitpid(fork(task, 600), 0)
    if status:
        sys.exit(f"error: the tests fail without a mutant; run python -m pytest {' '.join(TESTS)}")
    return json.loads(path.read_text())


def survivors(mutants: Sequence[Mutant], processes: int) -> Iterator[Mutant]:
    """The mutants with which every test passes."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        durations_s = measure(folder)
        limit_s = max(MIN_TIME_LIMIT_S, TIME_LIMIT_FACTOR * (time.monotonic() - began))
        running: dict[int, Mutant] = {}
        waiting = list(reversed(mutants))
        while waiting or running:
            while waiting and len(running) < processes:
                mutant = waiting.pop()
                running[fork(lambda mutant=mutant: run_tests(mutant, durations_s, folder)[0], limit_s)] = mutant
            pid, status = os.wait()
            mutant = running.pop(pid)
            if status == 0:
                yield mutant


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.signals.safety.mutations", description="Mutation tests of signals/safety.")
    parser.add_argument("text", nargs="*", help="only mutants whose name contains one of these; default: all")
    parser.add_argument("--list", action="store_true", help="list the mutants and run no tests")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="mutants at the same time (default: 2)")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # shrinking a failure takes time, and the first one is enough
    hypothesis.settings.register_profile(
        "mutations", deadline=None, derandomize=True, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate)
    )
    every = [mutant for path in sorted(SAFETY.glob("*.py")) for mutant in mutants_of(path)]
    chosen = [mutant for mutant in every if not options.text or any(text in mutant.key for text in options.text)]
    if options.list:
        for mutant in chosen:
            print(describe(mutant))
        return 0
    began, survived, failures = time.monotonic(), 0, []
    for mutant in survivors(chosen, options.processes):
        survived += 1
        if mutant.key not in EQUIVALENT_MUTANTS:
            failures.append(mutant.key)
            print(f"survived: {describe(mutant)}", flush=True)
    print(
        f"{len(chosen)} mutants, {len(chosen) - survived} killed, {survived - len(failures)} equivalent, "
        f"{len(failures)} survived in {time.monotonic() - began:.0f} s"
    )
    return 1 if failures else 0


def describe(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.key}"


if __name__ == "__main__":
    sys.exit(main())
