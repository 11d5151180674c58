"""Unary Predict of one 64-64 actor through the embedded server: with every request logged, against no logging.

    python -m benchmarks.prediction_log [--calls 3000]

Two servers run in processes of their own; one client calls them in alternating blocks. The log's bytes per request are
those of its files, so they show that every request was logged.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.unary_predict import BLOCK, INPUTS, block, city_file, server, serving_command, write_actors
from serving.client import Client

CONFIG = """
model_config_list {{ config {{
  name: "TL0000" base_path: "{models}/TL0000" model_platform: "tensorflow"
  logging_config {{ log_collector_config {{ filename_prefix: "TL0000" }} sampling_config {{ sampling_rate: 1 }} }}
}} }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="calls per server (default: 3000)")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as name:
        models, logs = Path(name, "models"), Path(name, "logs")
        models.mkdir()
        logs.mkdir()
        write_actors(models, 1)
        config = Path(name, "models.config")
        config.write_text(CONFIG.format(models=models))
        logged = ("-m", "serving", "--model_config_file", str(config), "--logs_root", str(logs), "--port", "0",
                  "--city", str(city_file(models)))  # fmt: skip
        with server(*serving_command(models)) as plain_address, server(*logged) as logged_address:
            clients, observation = [Client(plain_address), Client(logged_address)], np.zeros(INPUTS, np.float32)
            cases: dict[str, Callable[[], Any]] = {
                "no log": lambda: clients[0].predict("TL0000", observation),
                "every request logged": lambda: clients[1].predict("TL0000", observation),
            }
            for call in cases.values():
                block(call)
            times: dict[str, list[float]] = {case: [] for case in cases}
            for _ in range(max(1, calls // BLOCK)):
                for case, call in cases.items():
                    times[case] += block(call)
            for client in clients:
                client.close()
        requests = BLOCK + len(times["no log"])
        size = sum(path.stat().st_size for path in logs.iterdir())
    print(f"{'unary call':<22}{'p50':>12}{'p99':>12}")
    for case, times_s in times.items():
        print(f"{case:<22}{1000 * np.percentile(times_s, 50):>9.3f} ms{1000 * np.percentile(times_s, 99):>9.3f} ms")
    plain, with_log = times.values()
    ratios = [np.percentile(with_log, q) / np.percentile(plain, q) for q in (50, 99)]
    print(f"{'ratio':<22}{ratios[0]:>12.2f}{ratios[1]:>12.2f}")
    print(f"log: {size / requests:.0f} bytes per request")


if __name__ == "__main__":
    main()
