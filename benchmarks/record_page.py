"""The page of a record of 1,000 signals: time until it can show, time of a seek, and memory.

python -m benchmarks.record_page [--seconds N] [--thousand FOLDER]

Records a run under max-pressure, plays it with `greenserve replay --page`, and asks for frames of the whole city as a
browser
does, which draws nothing: at random seconds (a seek), and then second by second (playing).
"""

import asyncio
import contextlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from benchmarks import harness
from benchmarks.page_frame import decode

SECONDS = 120
SEEKS = 50
WHOLE_CITY = [-1e6, -1e6, 1e6, 1e6]
TL = "AA0"


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help=f"simulated seconds of the record (default: {SECONDS})"
    )
    harness.add_thousand(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cfg = harness.thousand(args, folder)
        city = harness.city_of(cfg, folder)
        record = folder / "record"
        options = ["--city", str(city), "--policy", "max-pressure", "--end", str(args.seconds)]
        subprocess.run(
            [sys.executable, "-m", "controller", *options, "--record", str(record)],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        size = sum(file.stat().st_size for file in record.iterdir())
        print(f"1,000 signals, a record of {args.seconds} simulated seconds, {size / 1e6:.1f} MB")
        begin_s = time.perf_counter()
        with playing(record) as (process, url):
            print(f"  the address is printed after {time.perf_counter() - begin_s:.1f} s")
            asyncio.run(watch(url, begin_s))
            (peak_kb,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
            print(f"  memory of greenserve replay, at most {int(peak_kb) / 1000:.0f} MB")


@contextlib.contextmanager
def playing(record: Path) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """The process that plays a record, and its address."""
    command = [sys.executable, "-m", "greenserve", "replay", str(record), "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next((found[0] for line in process.stdout if (found := re.findall(r"http[^\s;#]+", line))), None)
            if url is None:
                raise SystemExit("greenserve replay has ended without an address")
            yield process, url
        finally:
            process.terminate()


async def watch(url: str, begin_s: float) -> None:
    """Ask for frames, and print how long they took."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}city.json") as response:
            record = (await response.json())["record"]
        first_s, last_s = record["first_s"], record["last_s"]
        async with session.ws_connect(f"{url}live", max_msg_size=0) as connection:

            async def frame_ms(at_s: float, tl: str | None) -> float:
                asked_s = time.perf_counter()
                await connection.send_json({"view": WHOLE_CITY, "tl": tl, "at": at_s})
                frame = decode(await connection.receive_bytes())
                assert frame.at_s == at_s and len(frame.states) == 1000, f"not the frame of second {at_s}"
                return 1000 * (time.perf_counter() - asked_s)

            await frame_ms(first_s, None)
            print(f"  the first frame is there after {time.perf_counter() - begin_s:.1f} s")
            while not await has_read(session, url):
                await asyncio.sleep(0.1)
            print(f"  alarms, commands and control modes are there after {time.perf_counter() - begin_s:.1f} s")
            draw = random.Random(1)
            for what, tl in (("", None), (", with the panel of a TL", TL)):
                seeks = [await frame_ms(float(draw.randint(int(first_s) + 1, int(last_s))), tl) for _ in range(SEEKS)]
                print(f"  a seek{what}: {summary(seeks)}")
                seconds = range(int(first_s) + 1, int(last_s))
                print(f"  a second of playing{what}: {summary([await frame_ms(float(at_s), tl) for at_s in seconds])}")


async def has_read(session: aiohttp.ClientSession, url: str) -> bool:
    """True if the server has read the whole record once."""
    async with session.get(f"{url}overview.json") as response:
        return bool((await response.json())["is_complete"])


def summary(times_ms: list[float]) -> str:
    p50, p95 = statistics.median(times_ms), statistics.quantiles(times_ms, n=20)[-1]
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, at most {max(times_ms):.0f} ms"


if __name__ == "__main__":
    main()
