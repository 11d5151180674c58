"""What the live page costs a controller that runs as fast as it can: no page, nobody watching, one watcher, and sumo-gui.

python -m benchmarks.live_page [--rounds N] [--thousand FOLDER]

The watcher is a process that asks for frames as a browser does, of the whole city, and decodes them; it draws nothing. The
arms of a round run one after the other, so that a slow minute of the machine meets all of them; the ratios are medians over
rounds. Processor time is that of controller and SUMO, not the watcher's. sumo-gui runs under Xvfb, where both are installed.
"""

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks import thousand_signals
from city.arguments import Parser
from controller.operator.page.frames import decode

GRID = Path(__file__).resolve().parent.parent / "examples" / "grid" / "grid.sumocfg"
CITIES = {"sample city": 3600, "1,000 signals": 120}
"""Simulated seconds of a run, by city."""
NO_PAGE, NOBODY, WATCHED, GUI = "no page", "page, nobody watches", "page, one watcher", "sumo-gui under Xvfb"
ROUNDS = 3
WHOLE_CITY = [-1e6, -1e6, 1e6, 1e6]


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each arm (default: {ROUNDS})")
    parser.add_argument("--thousand", type=Path, metavar="FOLDER", help="where thousand_signals was written (default: write it)")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        asyncio.run(watch(args.watch))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        thousand = args.thousand / "thousand.sumocfg" if args.thousand else thousand_signals.write(folder, thousand_signals.DAY)
        for (name, seconds), cfg in zip(CITIES.items(), (GRID, thousand), strict=True):
            report(name, seconds, cfg.resolve(), folder, args.rounds)


def report(name: str, seconds: int, cfg: Path, folder: Path, rounds: int) -> None:
    """Run every arm in each round, and print a table."""
    city = folder / "city.toml"
    city.write_text(f'[network]\nsumocfg = "{cfg}"\n')
    has_gui = shutil.which("xvfb-run") is not None
    arms = [NO_PAGE, NOBODY, WATCHED, *([GUI] if has_gui else [])]
    wall_s: dict[str, list[float]] = {arm: [] for arm in arms}
    cpu_s: dict[str, list[float]] = {arm: [] for arm in arms}
    frames: list[str] = []
    for _ in range(rounds):
        for arm in arms:
            took_s, used_s, watched = run(arm, city, seconds)
            wall_s[arm].append(took_s)
            cpu_s[arm].append(used_s)
            frames += [watched] if watched else []
    print(f"{name}, {seconds} simulated seconds under max-pressure, {rounds} rounds")
    for kind, values in (("wall time", wall_s), ("processor time", cpu_s)):
        for arm in arms:
            ratios = [ours / base for ours, base in zip(values[arm], values[NO_PAGE], strict=True)]
            ratio = f"{statistics.median(ratios):.3f} x ({min(ratios):.3f} to {max(ratios):.3f})"
            print(f"  {kind:<16}{arm:<24}{statistics.median(values[arm]):8.2f} s  {ratio}")
    print(f"  the watcher: {'; '.join(frames)}")
    if not has_gui:
        print("  sumo-gui: left out, because xvfb-run is not installed (Debian's package xvfb)")


def run(arm: str, city: Path, seconds: int) -> tuple[float, float, str]:
    """(wall time and processor time of controller and SUMO in s, from the first step on; what the watcher has seen)."""
    command = [sys.executable, "-m", "controller", "--city", str(city), "--policy", "max-pressure", "--end", str(seconds)]
    has_page = arm in (NOBODY, WATCHED)
    if has_page:
        command += ["--page", "127.0.0.1:0"]
    elif arm == GUI:
        command = ["xvfb-run", "--auto-servernum", *command, "--gui"]
    watcher: subprocess.Popen[str] | None = None
    begin_s = before_s = end_s = after_s = 0.0
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if ("the live page: " if has_page else "INFO controlling ") in line:
                begin_s, before_s = time.perf_counter(), used_by(process.pid)
                if arm == WATCHED:
                    watcher = start_watcher(re.findall(r"http[^#\s]+", line)[0])
            elif " INFO second " in line:  # the last one follows the end of SUMO
                end_s, after_s = time.perf_counter(), used_by(process.pid)
    seen = watcher.communicate(timeout=60)[0].strip() if watcher is not None else ""
    if process.returncode:
        raise SystemExit(f"the controller ended with exit code {process.returncode}:\n{''.join(lines[-5:])}")
    return end_s - begin_s, after_s - before_s, seen


def used_by(pid: int) -> float:
    """Processor time of a process and of its children that have ended, up to now, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def start_watcher(url: str) -> subprocess.Popen[str]:
    """A watcher in a process of its own, as a browser is."""
    command = [sys.executable, "-m", "benchmarks.live_page", "--watch", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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
