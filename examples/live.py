"""Run the sample city in real time with the live page, under policies served here.

    python live.py [--page HOST:PORT] [--speed X] [--out DIR]

`make live` installs everything and runs this example. It ends with the simulation, or with Ctrl-C.
"""

import argparse
import sys
from pathlib import Path

import pipeline

from city.arguments import Parser
from controller.operator import operator_token

SEED = 42


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--page", metavar="HOST:PORT", default="127.0.0.1:8080", help="of the page (default: 127.0.0.1:8080)"
    )
    parser.add_argument("--speed", default="1", metavar="X", help="simulated seconds per wall second (default: 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/live"), help="folder of models and logs (default: out/live)"
    )
    args = parser.parse_args()
    models, log = args.out / "models", args.out / "controller.log"
    args.out.mkdir(parents=True, exist_ok=True)
    if not models.is_dir():
        print("export: write the sample city's trained actors as SavedModels", flush=True)
        pipeline.export(models, args.out / "export.log")
    with pipeline.serving(models, args.out / "serving.log") as server:
        command = [sys.executable, "-m", "controller", "--city", pipeline.CITY, "--server", server, "--seed", SEED]
        command += ["--page", args.page, "--speed", args.speed, "--models-dir", models]
        print(f"control: the sample city at speed {args.speed}; its log is {log}", flush=True)
        pipeline.run("the controller", command, log, _print_address)
    return 0


def _print_address(line: str) -> None:
    _, found, address = line.partition("the live page: ")
    if found:
        # the log has only the name of the token's file
        print(f"\n  open {address.partition('#')[0]}#token={operator_token.kept().value}\n", flush=True)


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
