"""A simulated day of the sample city with faults at random moments: no alarm, no frozen signal, flat memory, every TL
back in time.

SUMO has two clients: the test, which steps it and observes every signal, and a guard that serves the controller.
Server, controller, connections and models are disturbed one after the other. The simulation runs at PACE during a
fault, in real time until every TL is back on its policy, and else as fast as it can.
"""

import contextlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from city import network
from controller.sumo.programs import sumo_program
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from tests.conftest import GRID, ROOT
from tests.end_to_end.faults import Fault, Proxy, injected
from tests.end_to_end.generated_streets import write_demand
from tests.end_to_end.programs import ModelServer, connect, free_port, started
from tests.sample_city import write_city
from tests.waiting import wait_until

DAY_S = 86_400.0
MAX_RECOVERY_S = 10.0
"""Wall time, and simulated time, after the end of a fault in which every TL must be back on its policy."""
MAX_SHOWN_S = 300.0
"""A signal that shows one state for longer is frozen: max red of the sample city is 180 s."""
PACE = 10.0
"""Simulated seconds per second during a fault."""
WATCHDOG_S = 3.0
CARS_PER_SECOND = 0.004
FAULTS = (
    "server killed",
    "server stopped",
    "server restarted",
    "controller killed",
    "controller restarted",
    "controller stopped for a moment",
    "controller stopped until it is cut off",
    "garbage sent to the guard",
    "guard's connection: delay",
    "guard's connection: reset",
    "other client paused",
    "model of another TL",
    "model that cannot be loaded",
    *(f"connection: {fault.value}" for fault in Fault if fault is not Fault.NONE),
)


class Event(NamedTuple):
    at_s: float
    """Simulated second at which the fault begins."""
    fault: str
    duration_s: float
    """Wall time."""


def schedule(seed):
    """Each fault twice in a random order, at random moments that are at least 300 s apart."""
    rng = random.Random(seed)
    chosen = [fault for _ in range(2) for fault in rng.sample(FAULTS, len(FAULTS))]
    gap_s = (DAY_S - 600) / len(chosen)
    return [
        Event(round(300 + (k + 0.8 * rng.random()) * gap_s, 1), fault, round(rng.uniform(0.5, 4.0), 1))
        for k, fault in enumerate(chosen)
    ]


class Day:
    """The programs of the run, which are ended by `close`, and what was observed."""

    def __init__(self, models, folder):
        self.folder, self.now, self.longest_shown = folder, 0.0, (0.0, "")
        self.models = shutil.copytree(models, folder / "models")
        self._closing = contextlib.ExitStack()
        self._city = write_city(folder, ("[controller]\n", f"[controller]\nwatchdog_s = {WATCHDOG_S:g}\n"))
        street = network.of_sumocfg(GRID / "grid.sumocfg")
        self._http_port, self.guard_port, sumo_port = free_port(), free_port(), free_port()
        demand = write_demand(street.net_file, folder / "demand.rou.xml", CARS_PER_SECOND)
        self._start("sumo", [
            sumo_program(), "-n", street.net_file, "-r", demand, "-a", GRID / "fixed_time.add.xml", "--no-step-log",
            "--no-warnings", "--end", DAY_S + 1000, "--remote-port", sumo_port, "--num-clients", 2, "--seed", 1,
        ])  # fmt: skip
        self.server = ModelServer(self.models, folder / "socket")
        self._closing.callback(lambda: self.server.stop())
        self.proxy = self._closing.enter_context(contextlib.closing(Proxy(self.server.port)))
        pid_file = folder / "guard.pid"
        self.guard = self._start("guard", [
            sys.executable, "-m", "controller.guard", "--sumo", f"127.0.0.1:{sumo_port}", "--order", 2,
            "--port", self.guard_port, "--watchdog-s", WATCHDOG_S, "--pid-file", pid_file,
        ])  # fmt: skip
        self.guard_proxy = self._closing.enter_context(contextlib.closing(Proxy(self.guard_port)))
        self.client = connect(sumo_port, 1)
        self._closing.callback(self.client.close)
        wait_until(pid_file.exists)
        self.start_controller()
        limits = SafetyTimes(3.0, 4.0, 0.0)
        self._monitors = {s: SignalMonitor(signal, limits) for s, signal in street.signals.items()}
        self._shown, self.observed = dict.fromkeys(street.signals, ("", 0.0)), []

    def _start(self, name, command):
        log = self._closing.enter_context((self.folder / f"{name}.log").open("ab"))
        return self._closing.enter_context(started(command, stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT))

    def start_controller(self):
        self.controller = self._start("controller", [
            sys.executable, "-m", "controller", "--city", self._city, "--server", self.proxy.address, "--no-guard",
            "--sumo", self.guard_proxy.address, "--http", f"127.0.0.1:{self._http_port}", "--end", DAY_S + 500,
        ])  # fmt: skip

    def online(self):
        """The signals that a client sets."""
        return {s for s in self._monitors if self.client.trafficlight.getProgram(s) == "online"}

    def is_on_policies(self):
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=5).read().decode()
        except OSError:
            return False
        modes = re.findall(r"^controller_mode\{\S+ (\S+)$", text, re.MULTILINE)
        return bool(modes) and {*map(float, modes)} == {0.0} and self.online() == self._monitors.keys()

    def memory_mb(self):
        processes = {"guard": self.guard.pid, "controller": self.controller.pid, "server": self.server.pid}
        statuses = {name: Path(f"/proc/{pid}/status").read_text() for name, pid in processes.items()}
        return {name: int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024 for name, status in statuses.items()}

    def alarms(self):
        log = (self.folder / "controller.log").read_text()
        return self.observed + [line for line in log.splitlines() if "ALARM:" in line]

    def close(self):
        self._closing.close()

    def step_until(self, condition, pace=0.0, within_s=DAY_S):
        """Step until a condition holds; how long it took, in s of wall or simulated time, whichever is longer.

        Args:
            condition: is asked after every simulated second.
            pace: simulated seconds per second, at most; 0 for no bound.
            within_s: ends the wait.
        """
        begin_s, begin_wall_s, took_s = self.now, time.monotonic(), 0.0
        while not condition() and took_s <= within_s:
            self._step()
            if pace:
                time.sleep(max(0.0, (self.now - begin_s) / pace - (time.monotonic() - begin_wall_s)))
            took_s = max(time.monotonic() - begin_wall_s, self.now - begin_s)
        return took_s

    def advance_to(self, at_s):
        self.step_until(lambda: self.now >= at_s)

    def advance_for(self, wall_s):
        end_s = time.monotonic() + wall_s
        self.step_until(lambda: time.monotonic() >= end_s, PACE)

    def _step(self):
        """One second; checks what every signal shows."""
        self.client.simulationStep()
        before, self.now = self.now, self.client.simulation.getTime()
        for s, monitor in self._monitors.items():
            state = self.client.trafficlight.getRedYellowGreenState(s)
            self.observed += [f"observer: {each}" for each in monitor.check_shown(state, before, self.now)]
            shown, since_s = self._shown[s]
            if state != shown:
                self._shown[s] = state, self.now
            self.longest_shown = max(self.longest_shown, (self.now - since_s, f"{s} at {self.now:g}"))

    def restart_controller(self, exit_code):
        self.step_until(lambda: self.controller.poll() is not None)
        assert self.controller.returncode == exit_code
        self.start_controller()

    @contextlib.contextmanager
    def fault(self, event):
        kind, controller, server = event.fault, self.controller, self.server
        if kind.startswith("connection: "):
            with injected(self.proxy, Fault(kind.removeprefix("connection: "))):
                yield
        elif kind == "server stopped":
            server.send_signal(signal.SIGSTOP)
            yield
            server.send_signal(signal.SIGCONT)
        elif kind.startswith("server"):
            server.send_signal(signal.SIGKILL if kind == "server killed" else signal.SIGTERM)
            yield
            server.stop()
            server.start(server.port)
        elif kind in ("controller killed", "controller restarted"):
            controller.send_signal(signal.SIGKILL if kind == "controller killed" else signal.SIGTERM)
            yield
            self.restart_controller(-signal.SIGKILL if kind == "controller killed" else 0)
        elif kind == "controller stopped for a moment":
            controller.send_signal(signal.SIGSTOP)
            time.sleep(min(event.duration_s, WATCHDOG_S / 3))
            controller.send_signal(signal.SIGCONT)
            yield
        elif kind == "controller stopped until it is cut off":
            controller.send_signal(signal.SIGSTOP)
            self.step_until(lambda: not self.online())
            yield
            controller.send_signal(signal.SIGCONT)
            self.restart_controller(1)
        elif kind == "guard's connection: delay":
            with injected(self.guard_proxy, Fault.DELAY):
                yield
        elif kind == "guard's connection: reset":
            with injected(self.guard_proxy, Fault.RESET):
                self.step_until(lambda: controller.poll() is not None)
            yield
            self.restart_controller(1)
        elif kind == "garbage sent to the guard":
            with socket.create_connection(("127.0.0.1", self.guard_port)) as stray:
                stray.sendall(random.Random(event.at_s).randbytes(200))
                yield
        elif kind == "other client paused":
            time.sleep(event.duration_s)
            yield
        else:
            version, hidden = (self.models / "SA102" / name for name in ("2", ".2"))
            if kind == "model of another TL":
                shutil.copytree(self.models / "SA106" / "1", hidden)
            else:
                hidden.mkdir()
                (hidden / "saved_model.pb").write_bytes(b"\x0a\xff broken")
            hidden.rename(version)
            yield
            shutil.rmtree(version)


@pytest.mark.alone
@pytest.mark.slow
def test_day_of_faults_passes_without_alarm_and_every_tl_is_back_in_time(grid_models, tmp_path):
    with contextlib.closing(Day(grid_models, tmp_path)) as day:
        assert day.step_until(day.is_on_policies, 1.0, 60) < 60, (tmp_path / "controller.log").read_text()
        memory_mb, late = [], []
        quarters = [Event(DAY_S * k / 4, "", 0.0) for k in (1, 2, 3, 4)]
        for event in sorted((*schedule(1), *quarters)):
            day.advance_to(event.at_s)
            if event.fault:
                with day.fault(event):
                    day.advance_for(event.duration_s)
                recovery_s = day.step_until(day.is_on_policies, 1.0, 3 * MAX_RECOVERY_S)
                print(f"second {day.now:.0f}: {event}, back after {recovery_s:.1f} s", flush=True)
                late += [(event, recovery_s)] if recovery_s > MAX_RECOVERY_S else []
            else:
                memory_mb.append(day.memory_mb())
    assert day.alarms() == [] and late == [] and day.longest_shown[0] <= MAX_SHOWN_S, day.longest_shown
    for name, first in memory_mb[0].items():
        assert max(each[name] for each in memory_mb) <= 1.05 * first + 5, (name, memory_mb)


def test_schedule_depends_on_the_seed_alone_and_has_every_fault():
    events = schedule(5)
    assert events == schedule(5) != schedule(6)
    assert {event.fault for event in events} == set(FAULTS)
    moments = [event.at_s for event in events]
    assert moments == sorted(moments) and moments[0] >= 300 and moments[-1] <= DAY_S - 300
