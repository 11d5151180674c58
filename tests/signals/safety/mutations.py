"""Mutation tests of signals/safety: every operator and bound is changed once, and some test must fail.

    python -m tests.signals.safety.mutations [--list] [--processes N] [TEXT ...]

One process imports what the tests need, except for signals and tests, and forks for each
mutant. The child compiles the mutant in memory, gives it to the first import of its
module, and runs the tests from the fastest to the slowest until one fails. No source
file is changed. A mutant is killed if a test fails, or its tests do not end in time.
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
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis
import pytest

import city.config
import city.network  # noqa: F401 - imported once, before the first fork
import protos.policy_pb2  # noqa: F401
from tests.signals.safety.equivalent_mutants import EQUIVALENT_MUTANTS
from tests.signals.safety.mutants import Mutant, mutants_of

DESCRIPTION = "Mutation tests of signals/safety: every operator and bound is changed once, and some test must fail."
ROOT = Path(__file__).resolve().parents[3]
SAFETY = ROOT / "signals" / "safety"
TESTS = ("tests/signals/safety", "tests/signals/test_intersection.py")
OPTIONS = (
    "-x",
    "-q",
    "--tb=no",
    "--assert=plain",
    "-m",
    "not slow",
    "-p",
    "no:cacheprovider",
    "-p",
    "_hypothesis_pytestplugin",
)
PROFILE = "mutations"
SURVIVED, TEST_FAILED, IMPORT_FAILED, RUNNER_FAILED = 0, 1, 2, 70
"""Exit codes of a mutant's process: three of pytest's, and one for an exception outside pytest."""
MAX_WALL_S = 600
MAX_CPU_S = 60
"""CPU time of a mutant's tests, which take about 5 s without a change: a mutant may loop for ever."""
MAX_MEMORY_BYTES = 4 << 30
STATES = 2000
"""Instead of a hundred thousand states under adversarial requests."""


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


def run_tests(path: Path, code: CodeType, order: TestOrder, folder: Path) -> int:
    """Run the tests in this process with `code` in place of a module. Returns pytest's exit code."""
    sys.meta_path.insert(0, MutantImporter(path, code))
    options = [*OPTIONS, f"--hypothesis-profile={PROFILE}", f"--basetemp={folder / str(os.getpid())}"]
    return pytest.main([*options, *TESTS], plugins=[order])


def fork(task: Callable[[], int], max_cpu_s: float = MAX_CPU_S) -> int:
    """Run a task in a forked process without output and with bounded CPU time. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = RUNNER_FAILED
    try:
        # the kernel ends the process, even in an endless loop and if its parent was killed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        signal.alarm(MAX_WALL_S)  # also if it waits without using the CPU
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(task())
    finally:
        os._exit(code)


def measure(folder: Path) -> dict[str, float]:
    """Durations of the tests in s, by node id, with an unchanged module. Exits if they do not pass."""
    result, path = folder / "durations.json", SAFETY / "conflicts.py"

    def task() -> int:
        order = TestOrder({})
        code = run_tests(path, compile(path.read_text(), str(path), "exec"), order, folder)
        result.write_text(json.dumps(order.durations_s))
        return code

    if os.waitpid(fork(task), 0)[1]:
        sys.exit(f"error: tests fail without a mutant; run python -m pytest {' '.join(TESTS)}")
    return json.loads(result.read_text())


def surviving(mutants: Sequence[Mutant], processes: int) -> Iterator[Mutant]:
    """The mutants with which every test passes, as soon as that is known."""
    running: dict[int, Mutant] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        durations_s = measure(folder)
        waiting = list(reversed(mutants))
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    mutant = waiting.pop()
                    task = partial(_test_mutant, mutant, TestOrder(durations_s), folder)
                    running[fork(task)] = mutant
                pid, status = os.wait()
                mutant, code = running.pop(pid), os.waitstatus_to_exitcode(status)
                if code == SURVIVED:
                    yield mutant
                elif code > 0 and code not in (TEST_FAILED, IMPORT_FAILED):
                    sys.exit(f"error: {describe(mutant)}: exit code {code} of pytest; is the mutant valid Python?")
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _test_mutant(mutant: Mutant, order: TestOrder, folder: Path) -> int:
    return run_tests(mutant.path, mutant.compile(), order, folder)


def run_mutants(mutants: Sequence[Mutant], processes: int) -> list[str]:
    """Test mutants and print survivors. Returns the keys of those that survived."""
    survived = []
    for mutant in surviving(mutants, processes):
        survived.append(mutant.key)
        if mutant.key not in EQUIVALENT_MUTANTS:
            print(f"survived: {describe(mutant)}", flush=True)
    return survived


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.signals.safety.mutations", description=DESCRIPTION)
    parser.add_argument("text", nargs="*", help="only mutants whose name contains one of these; default: all")
    parser.add_argument("--list", action="store_true", help="list the mutants and run no tests")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="mutants at the same time (default: 2)")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    every = [mutant for path in sorted(SAFETY.glob("*.py")) for mutant in mutants_of(path)]
    chosen = [mutant for mutant in every if not options.text or any(text in mutant.key for text in options.text)]
    if options.list:
        for mutant in chosen:
            print(describe(mutant))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # the first failure is enough, and shrinking it would take time
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(PROFILE, deadline=None, derandomize=True, phases=phases)
    began, survived = time.monotonic(), run_mutants(chosen, options.processes)
    tested = {mutant.key for mutant in chosen}
    unexpected = [key for key in survived if key not in EQUIVALENT_MUTANTS]
    killed = [key for key in EQUIVALENT_MUTANTS if key in tested and key not in survived]
    unknown = [key for key in EQUIVALENT_MUTANTS if key not in {mutant.key for mutant in every}]
    for what, keys in (("killed", killed), ("does not exist", unknown)):
        for key in keys:
            print(f"listed as equivalent, but {what}: {key}")
    print(
        f"{len(chosen)} mutants: {len(chosen) - len(survived)} killed, {len(survived) - len(unexpected)} equivalent, "
        f"{len(unexpected)} survived; {time.monotonic() - began:.0f} s"
    )
    return 1 if unexpected or killed or unknown else 0


def describe(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.key}"


if __name__ == "__main__":
    sys.exit(main())
