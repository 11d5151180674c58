"""How fast the live page draws 1,000 signals and 10,000 vehicles in Chromium without a graphics card, by the page's own
figures.

    python -m benchmarks.page_frames [--thousand FOLDER]

The controller runs under max-pressure as fast as it can; the page shows the whole city at 1920 x 1080. It prints the
newest figures that the page shows of itself: the 95th percentile of drawing a frame (of the newest 300), vehicles in
view, steps skipped. Needs playwright (PyPI) and Debian's chromium.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import harness

SECONDS = 120
"""Simulated time of the run."""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SELF = "() => [...document.querySelectorAll('#self dd')].map((value) => value.textContent)"
VEHICLES = 2
"""Index of the vehicles in view in these values."""


def main() -> None:
    parser = harness.parser(__doc__)
    harness.add_thousand(parser)
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("skipped: playwright (PyPI) or chromium (Debian) is not installed")
        return
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        cfg = harness.thousand(args, folder)
        city = harness.city_of(cfg, folder)
        command = [
            sys.executable,
            "-m",
            "controller",
            "--city",
            str(city),
            "--policy",
            "max-pressure",
            "--end",
            str(SECONDS),
        ]
        with subprocess.Popen([*command, "--page", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as controller:
            assert controller.stderr is not None
            url = next(match[0] for line in controller.stderr if (match := re.search(r"http\S+", line)))
            threading.Thread(target=controller.stderr.read, daemon=True).start()
            browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
            page = browser.new_page(viewport={"width": 1920, "height": 1080})
            page.goto(url)
            values: list[str] = []
            while controller.poll() is None:
                found = page.evaluate(SELF)
                # the newest figures with vehicles: at its end the page has none to draw
                if len(found) > VEHICLES and found[VEHICLES] not in ("–", "0"):
                    values = found
                time.sleep(0.5)
            browser.close()
    if not values:
        raise SystemExit("the page has drawn no vehicles")
    skipped, drawing, vehicles, *_ = values
    print(f"1,000 signals, {vehicles} vehicles in view: drawing, 95th percentile {drawing}; steps skipped {skipped}")


if __name__ == "__main__":
    main()
