"""Mutation tests of signals/safety: every operator and bound is changed once, and some test must fail.

    python -m tests.signals.safety.mutations [--list] [--processes N] [TEXT ...]

One process imports what the tests need, except for signals and tests, and forks for each
mutant. The child compiles the mutant in memory, puts it in the place of its module, and
runs the tests from the fastest to the slowest until one fails. No source file is changed.
A mutant is killed if a test fails, or its tests do not end in time.
"""

import argparse
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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


def run_tests(path: Path, code: CodeType, order: TestOrder, folder: Path) -> int:
    """Run the tests in this process with `code` in place of a module. Returns pytest's exit code."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(code, vars(module))
    except Exception:  # noqa: BLE001 - a module that cannot be imported fails every test
        return TEST_FAILED
    setattr(importlib.import_module(name.rpartition(".")[0]), path.stem, module)
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
    waiting = list(reversed(mutants))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        durations_s = measure(folder)

        def test(mutant: Mutant) -> int:
            return run_tests(mutant.path, mutant.compile(), TestOrder(durations_s), folder)

        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    mutant = waiting.pop()
                    running[fork(lambda mutant=mutant: test(mutant))] = mutant
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
    began, survived = time.monotonic(), []
    for mutant in surviving(chosen, options.processes):
        survived.append(mutant.key)
        if mutant.key not in EQUIVALENT_MUTANTS:
            print(f"survived: {describe(mutant)}", flush=True)
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
