"""A simulated day of the sample city with faults at random moments.

    python -m tests.end_to_end.chaos [--seed N] [--hours H] [--faults K]

SUMO has two clients: this process, which steps it and observes every signal, and a guard that
serves the controller. Server, controller, connections and models are disturbed one after the
other. The schedule depends on the seed alone and is printed first, so that a failure can be
repeated. The simulation runs at PACE during a fault, in real time until every TL is back on its
policy, and else as fast as it can.
"""

import argparse
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from city import network
from controller.sumo.programs import sumo_program
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from tests.conftest import GRID, ROOT
from tests.end_to_end.faults import Fault, injected, proxy_process
from tests.end_to_end.generated_streets import write_demand
from tests.end_to_end.programs import ModelServer, connect, free_port
from tests.sample_city import write_city
from tests.waiting import wait_until

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


def schedule(seed: int, seconds: float, faults: int) -> list[Event]:
    """Faults of every kind in a random order, at random moments that are at least 300 s apart."""
    rng = random.Random(seed)
    chosen = [kind for k in range(0, faults, len(FAULTS)) for kind in rng.sample(FAULTS, min(len(FAULTS), faults - k))]
    gap_s = (seconds - 600) / faults
    return [
        Event(round(300 + (k + 0.8 * rng.random()) * gap_s, 1), kind, round(rng.uniform(0.5, 4.0), 1))
        for k, kind in enumerate(chosen)
    ]


class City:
    """The programs of the run; everything that is started here is ended here."""

    def __init__(self, models: Path, folder: Path, end_s: float) -> None:
        self._folder, self.end_s = folder, end_s
        self.models = folder / "models"
        shutil.copytree(models, self.models)
        self._closing = contextlib.ExitStack()
        self._city = write_city(folder, ("[controller]\n", f"[controller]\nwatchdog_s = {WATCHDOG_S:g}\n"))
        self.street = network.of_sumocfg(GRID / "grid.sumocfg")
        self._sumo_port, self._http_port, self.guard_port = free_port(), free_port(), free_port()
        demand = write_demand(self.street.net_file, folder / "demand.rou.xml", CARS_PER_SECOND)
        self._start("sumo", [
            sumo_program(), "-n", self.street.net_file, "-r", demand, "-a", GRID / "fixed_time.add.xml",
            "--no-step-log",
            "--no-warnings", "--end", end_s + 1000, "--remote-port", self._sumo_port, "--num-clients", 2, "--seed", 1,
        ])  # fmt: skip
        self.server = ModelServer(self.models, folder / "socket")
        self._closing.callback(lambda: self.server.stop())
        self.proxy = self._closing.enter_context(proxy_process(self.server.port))
        pid_file = folder / "guard.pid"
        self.guard = self._start("guard", [
            sys.executable, "-m", "controller.guard", "--sumo", f"127.0.0.1:{self._sumo_port}", "--order", 2,
            "--port", self.guard_port, "--watchdog-s", WATCHDOG_S, "--pid-file", pid_file,
        ])  # fmt: skip
        self.guard_proxy = self._closing.enter_context(proxy_process(self.guard_port))
        self.client = connect(self._sumo_port, 1)
        self._closing.callback(self.client.close)
        wait_until(pid_file.exists)
        self.start_controller()

    def _start(self, name: str, command: Sequence[object]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT)
        self._closing.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def start_controller(self) -> None:
        self.controller = self._start("controller", [
            sys.executable, "-m", "controller", "--city", self._city, "--server", self.proxy.address, "--no-guard",
            "--sumo", self.guard_proxy.address, "--http", f"127.0.0.1:{self._http_port}", "--end", self.end_s + 500,
        ])  # fmt: skip

    def metrics(self) -> dict[str, float]:
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=5).read().decode()
        except OSError:
            return {}
        return {name: float(value) for name, value in re.findall(r"^(controller_\S+) (\S+)$", text, re.MULTILINE)}

    def online(self) -> set[str]:
        """The signals that a client sets."""
        return {s for s in self.street.signals if self.client.trafficlight.getProgram(s) == "online"}

    def is_on_policies(self) -> bool:
        modes = [value for name, value in self.metrics().items() if name.startswith("controller_mode{")]
        is_running = bool(modes) and self.controller.poll() is None
        return is_running and not any(modes) and self.online() == self.street.signals.keys()

    def memory_mb(self) -> dict[str, float]:
        processes = {"guard": self.guard.pid, "controller": self.controller.pid, "server": self.server.pid}
        statuses = {name: Path(f"/proc/{pid}/status").read_text() for name, pid in processes.items()}
        return {name: int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024 for name, status in statuses.items()}

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def close(self) -> None:
        self._closing.close()


class Run:
    def __init__(self, city: City, events: Sequence[Event]) -> None:
        self.city, self.events, self.now = city, events, 0.0
        self.recoveries_s: list[tuple[Event, float]] = []
        self.alarms: list[str] = []
        self.longest_shown_s, self.longest_shown_by = 0.0, ""
        self.memory_mb: dict[str, list[float]] = {}
        """By process, its memory at the end of each quarter of the day."""
        limits = SafetyTimes(3.0, 4.0, 0.0)
        self._monitors = {s: SignalMonitor(signal, limits) for s, signal in city.street.signals.items()}
        self._shown = dict.fromkeys(city.street.signals, ("", 0.0))

    def run(self) -> None:
        city = self.city
        assert self._until(city.is_on_policies, 60, pace=1.0) < 60, city.log("controller")
        quarters = [city.end_s * k / 4 for k in (1, 2, 3, 4)]
        for event in self.events:
            self._advance_to(event.at_s, quarters)
            with self._fault(event):
                self._advance_for(event.duration_s)
            recovery_s = self._until(city.is_on_policies, 3 * MAX_RECOVERY_S, pace=1.0)
            self.recoveries_s.append((event, recovery_s))
            print(
                f"second {self.now:.0f}: {event.fault} for {event.duration_s} s, back after {recovery_s:.1f} s",
                flush=True,
            )
        self._advance_to(city.end_s, quarters)
        self.alarms += [line for line in city.log("controller").splitlines() if "ALARM:" in line]

    def _advance_to(self, until_s: float, quarters: list[float]) -> None:
        while self.now < until_s:
            self._step()
            if quarters and self.now >= quarters[0]:
                quarters.pop(0)
                for name, mb in self.city.memory_mb().items():
                    self.memory_mb.setdefault(name, []).append(round(mb, 1))

    def _advance_for(self, wall_s: float) -> None:
        end_s = time.monotonic() + wall_s
        while time.monotonic() < end_s:
            self._step()
            time.sleep(1 / PACE)

    def _until(self, condition: Callable[[], bool], within_s: float, pace: float) -> float:
        """Step at a pace until a condition holds; how long it took, in s of wall or simulated time, whichever is
        longer."""
        begin_s, begin_wall_s = self.now, time.monotonic()
        while not condition():
            took_s = max(time.monotonic() - begin_wall_s, self.now - begin_s)
            if took_s > within_s:
                return took_s
            self._step()
            time.sleep(max(0.0, (self.now - begin_s) / pace - (time.monotonic() - begin_wall_s)))
        return max(time.monotonic() - begin_wall_s, self.now - begin_s)

    def _step(self) -> None:
        """One second; checks what every signal shows."""
        light = self.city.client.trafficlight
        self.city.client.simulationStep()
        before, self.now = self.now, self.city.client.simulation.getTime()
        for signal_id, monitor in self._monitors.items():
            state = light.getRedYellowGreenState(signal_id)
            for alarm in monitor.check_shown(state, before, self.now):
                self.alarms.append(f"observer: {alarm.signal} at {alarm.at_s:g}: {alarm.rule} {alarm.message}")
            shown, since_s = self._shown[signal_id]
            if state != shown:
                self._shown[signal_id] = state, self.now
            elif self.now - since_s > self.longest_shown_s:
                self.longest_shown_s, self.longest_shown_by = self.now - since_s, f"{signal_id} at {self.now:g}"

    def _restart_controller(self, exit_code: int) -> None:
        while self.city.controller.poll() is None:
            self._step()
        assert self.city.controller.returncode == exit_code
        self.city.start_controller()

    @contextlib.contextmanager
    def _fault(self, event: Event) -> Iterator[None]:
        city, kind = self.city, event.fault
        if kind.startswith("connection: "):
            with injected(city.proxy, Fault(kind.removeprefix("connection: "))):
                yield
        elif kind == "server stopped":
            city.server.send_signal(signal.SIGSTOP)
            yield
            city.server.send_signal(signal.SIGCONT)
        elif kind.startswith("server"):
            city.server.send_signal(signal.SIGKILL if kind == "server killed" else signal.SIGTERM)
            yield
            city.server.stop()
            city.server.start(city.server.port)
        elif kind in ("controller killed", "controller restarted"):
            city.controller.send_signal(signal.SIGKILL if kind == "controller killed" else signal.SIGTERM)
            yield
            self._restart_controller(-signal.SIGKILL if kind == "controller killed" else 0)
        elif kind == "controller stopped for a moment":
            city.controller.send_signal(signal.SIGSTOP)
            time.sleep(min(event.duration_s, WATCHDOG_S / 3))
            city.controller.send_signal(signal.SIGCONT)
            yield
        elif kind == "controller stopped until it is cut off":
            city.controller.send_signal(signal.SIGSTOP)
            while city.online():
                self._step()
            yield
            city.controller.send_signal(signal.SIGCONT)
            self._restart_controller(1)
        elif kind == "guard's connection: delay":
            with injected(city.guard_proxy, Fault.DELAY):
                yield
        elif kind == "guard's connection: reset":
            with injected(city.guard_proxy, Fault.RESET):
                while city.controller.poll() is None:
                    self._step()
            yield
            self._restart_controller(1)
        elif kind == "garbage sent to the guard":
            with socket.create_connection(("127.0.0.1", city.guard_port)) as stray:
                stray.sendall(random.Random(event.at_s).randbytes(200))
                yield
        elif kind == "other client paused":
            time.sleep(event.duration_s)
            yield
        else:
            version = city.models / "SA102" / "2"
            hidden = city.models / "SA102" / ".2"
            if kind == "model of another TL":
                shutil.copytree(city.models / "SA106" / "1", hidden)
            else:
                hidden.mkdir()
                (hidden / "saved_model.pb").write_bytes(b"\x0a\xff broken")
            hidden.rename(version)
            yield
            shutil.rmtree(version)


def main(arguments: Sequence[str] | None = None) -> Run:
    """Run the day; the sample city's models are exported first."""
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--faults", type=int, default=2 * len(FAULTS))
    parser.add_argument("--models", type=Path, required=True, help="exported models of the sample city")
    parser.add_argument("--folder", type=Path, required=True, help="empty folder for logs")
    args = parser.parse_args(arguments)
    events = schedule(args.seed, 3600 * args.hours, args.faults)
    print(
        f"seed {args.seed}:",
        *(f"  {event.at_s:9.1f}  {event.fault}, {event.duration_s} s" for event in events),
        sep="\n",
    )
    with contextlib.closing(City(args.models, args.folder, 3600 * args.hours)) as city:
        day = Run(city, events)
        day.run()
    print(f"longest recovery {max((s for _, s in day.recoveries_s), default=0):.1f} s; one state for at most "
          f"{day.longest_shown_s:.0f} s ({day.longest_shown_by}); memory in MB {day.memory_mb}")  # fmt: skip
    print(*day.alarms, sep="\n")
    return day


if __name__ == "__main__":
    main()
