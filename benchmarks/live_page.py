"""Cost of the live page to a controller that runs as fast as it can: no page, no watcher, one watcher, and sumo-gui.

python -m benchmarks.live_page [--rounds N] [--thousand FOLDER]

The watcher is a process that asks for frames as a browser does, of the whole city, and decodes them; it draws nothing.
The arms of a round run one after the other, so that a slow minute of the machine meets all of them, and each round
begins with another arm; the ratios are medians over rounds. Processor time is that of the controller and its SUMO, not
that of the watcher or of Xvfb. sumo-gui runs if Xvfb is installed.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks import harness
from benchmarks.page_frame import decode

GRID = Path(__file__).resolve().parent.parent / "examples" / "grid" / "grid.sumocfg"
CITIES = {"sample city": (3600, 2), "1,000 signals": (120, 1)}
"""By city, simulated seconds of a run, and its rounds for each of --rounds: short runs differ more."""
NO_PAGE, NO_WATCHER, WATCHED, GUI = "no page", "page, no watcher", "page, one watcher", "sumo-gui under Xvfb"
ROUNDS = 3
WHOLE_CITY = [-1e6, -1e6, 1e6, 1e6]


class Cost(NamedTuple):
    """Times of a run from its first step on, in s."""

    wall_s: float
    controller_s: float
    """Processor time."""
    sumo_s: float
    """Processor time."""


MEASURES: dict[str, Callable[[Cost], float]] = {
    "wall time": lambda cost: cost.wall_s,
    "processor time": lambda cost: cost.controller_s + cost.sumo_s,
    "of it controller": lambda cost: cost.controller_s,
    "of it SUMO": lambda cost: cost.sumo_s,
}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds; twice as many of the sample city (default: {ROUNDS})"
    )
    harness.add_thousand(parser)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        print("ready", flush=True)
        asyncio.run(watch(sys.stdin.readline().strip()))
        return
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as display:
        if shutil.which("Xvfb") is not None:
            os.environ["DISPLAY"] = display.enter_context(virtual_display())
            arms = [NO_PAGE, NO_WATCHER, WATCHED, GUI]
        else:
            print("sumo-gui: left out, because Xvfb is not installed (Debian's package xvfb)")
            arms = [NO_PAGE, NO_WATCHER, WATCHED]
        folder = Path(temporary)
        thousand = harness.thousand(args, folder)
        for (name, (seconds, rounds)), cfg in zip(CITIES.items(), (GRID, thousand), strict=True):
            report(name, seconds, cfg.resolve(), folder, args.rounds * rounds, arms)


def report(name: str, seconds: int, cfg: Path, folder: Path, rounds: int, arms: list[str]) -> None:
    """Run every arm in each round, and print a table."""
    city = harness.city_of(cfg, folder)
    costs: dict[str, list[Cost]] = {arm: [] for arm in arms}
    frames: list[str] = []
    for k in range(rounds):
        first = k % len(arms)
        for arm in arms[first:] + arms[:first]:
            cost, watched = run(arm, city, seconds)
            costs[arm].append(cost)
            frames += [watched] if watched else []
    print(f"{name}, {seconds} simulated seconds under max-pressure, {rounds} rounds")
    for kind, measure in MEASURES.items():
        base = [measure(cost) for cost in costs[NO_PAGE]]
        for arm in arms:
            values = [measure(cost) for cost in costs[arm]]
            ratios = [ours / without for ours, without in zip(values, base, strict=True)]
            ratio = f"{statistics.median(ratios):.3f} x ({min(ratios):.3f} to {max(ratios):.3f})"
            print(f"  {kind:<18}{arm:<24}{statistics.median(values):8.2f} s  {ratio}")
    print(f"  the watcher: {'; '.join(frames)}", flush=True)


def run(arm: str, city: Path, seconds: int) -> tuple[Cost, str]:
    """Run an arm; return its cost, and what the watcher has seen."""
    command = [
        sys.executable,
        "-m",
        "controller",
        "--city",
        str(city),
        "--policy",
        "max-pressure",
        "--end",
        str(seconds),
    ]
    has_page = arm in (NO_WATCHER, WATCHED)
    command += ["--page", "127.0.0.1:0"] if has_page else ["--gui"] if arm == GUI else []
    watcher = waiting_watcher() if arm == WATCHED else None
    wall_s, sumo_s, own_s = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if ("the live page: " if has_page else "INFO controlling ") in line:
                wall_s[0], own_s[0] = time.perf_counter(), used_by(process.pid)[0]
                sumo_s[0] = sum(used_by(child)[0] for child in children_of(process.pid))
                if watcher is not None and watcher.stdin is not None:
                    watcher.stdin.write(re.findall(r"http[^#\s]+", line)[0] + "\n")
                    watcher.stdin.flush()
            elif " INFO second " in line:  # the last one follows the end of SUMO
                wall_s[1] = time.perf_counter()
                own_s[1], sumo_s[1] = used_by(process.pid)
    seen = watcher.communicate(timeout=60)[0].strip() if watcher is not None else ""
    if process.returncode:
        raise SystemExit(f"the controller ended with exit code {process.returncode}:\n{''.join(lines[-5:])}")
    return Cost(*(after - before for before, after in (wall_s, own_s, sumo_s))), seen


def used_by(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of its children that have ended, up to now, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    own, children = (sum(map(int, fields[k : k + 2])) / os.sysconf("SC_CLK_TCK") for k in (11, 13))
    return own, children


def children_of(pid: int) -> list[int]:
    """The children of a process that run."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@contextlib.contextmanager
def virtual_display() -> Iterator[str]:
    """An X server without a screen; its DISPLAY."""
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "1280x1024x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            number = server.stdout.readline().strip()
            if not number:
                raise SystemExit("Xvfb does not start; run it by hand to see why")
            yield f":{number}"
        finally:
            server.terminate()


def waiting_watcher() -> "subprocess.Popen[str]":
    """A watcher in a process of its own, as a browser is; it has started and waits for an address."""
    command = [sys.executable, "-m", "benchmarks.live_page", "--watch"]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    watcher.stdout.readline()
    return watcher


async def watch(url: str) -> None:
    """Ask for frames until the run ends, and print what they were."""
    sizes: list[int] = []
    vehicles, first, last = 0, -1, 0
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}live", max_msg_size=0) as connection:
            while not connection.closed:
                await connection.send_json({"view": WHOLE_CITY, "tl": None})
                message = await connection.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                frame = decode(message.data)
                sizes.append(len(message.data))
                vehicles = max(vehicles, len(frame.vehicles.x) if frame.vehicles else 0)
                first, last = (frame.sequence if first < 0 else first), frame.sequence
    except aiohttp.ClientError as error:
        print(f"{type(error).__name__} after {len(sizes)} frames")
        return
    steps, size = last - first + 1, statistics.median(sizes or [0]) / 1000
    print(f"{len(sizes)} frames of {steps} steps, median {size:.1f} kB, {vehicles} vehicles")


if __name__ == "__main__":
    main()
