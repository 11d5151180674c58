"""`greenserve COMMAND ...`: the same programs as `python -m export`, `python -m serving`, ...

An installed command is not shadowed by a user's own controller.py or serving.py in
the city's folder, as `python -m controller` is.
"""

import os
import sys
from collections.abc import Callable

from city.arguments import Parser
from city.errors import InputError
from city.version import VERSION


def _export(argv: list[str]) -> int:
    from export.__main__ import main

    return main(argv, "greenserve export")


def _export_command(name: str) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        from export.__main__ import main

        return main([name, *argv], "greenserve")

    return run


def _serve(argv: list[str]) -> int:
    from serving.__main__ import main

    return main(argv, "greenserve serve")


def _client_command(name: str) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        from serving.commands import main

        return main([name, *argv], "greenserve")

    return run


def _control(argv: list[str]) -> int:
    from controller.__main__ import main

    return main(argv, "greenserve control")


def _check(argv: list[str]) -> int:
    from controller.check import main

    return main(argv, "greenserve check")


def _city(argv: list[str]) -> int:
    from city.init import main
    from signals import dialects

    return main(argv, dialects.names(), "greenserve city")


def _train(argv: list[str]) -> int:
    from training.__main__ import main

    return main(argv, "greenserve train")


def _evaluate(argv: list[str]) -> int:
    from evaluation.__main__ import main

    return main(argv, "greenserve evaluate")


def _guard(argv: list[str]) -> int:
    from controller.guard.__main__ import main

    return main(argv, "greenserve guard")


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "city": (_city, "write a first city.toml for a SUMO network"),
    "export": (_export, "turn trained actors into SavedModels"),
    "inspect": (_export_command("inspect"), "list a checkpoint's variables and what an export would use"),
    "describe": (_export_command("describe"), "print a model's contract and signatures"),
    "fleet": (_export_command("fleet"), "build one SavedModel out of many TLs' models"),
    "train": (_train, "train TLs by PPO, beside TLs that are served"),
    "evaluate": (_evaluate, "compare served policies with baselines on the same demand"),
    "serve": (_serve, "run the embedded server"),
    "predict": (_client_command("predict"), "request a prediction from a served model"),
    "status": (_client_command("status"), "show the served models and versions"),
    "check": (_check, "compare contracts with the network, without running"),
    "control": (_control, "control a city's signals with served policies"),
    "guard": (_guard, "hold the connection to SUMO, in case a controller crashes"),
}


OWN_PACKAGES = ("city", "controller", "evaluation", "export", "greenserve", "protos", "serving", "signals", "training")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] in COMMANDS:
            code = COMMANDS[argv[0]][0](argv[1:])
            sys.stdout.flush()
            return code
        parser = Parser(prog="greenserve", description="Export, serve and run trained traffic-signal policies.")
        parser.add_argument("--version", action="version", version=f"greenserve {VERSION}")
        commands = parser.add_subparsers(metavar="COMMAND", required=True)
        for name, (_, summary) in COMMANDS.items():
            commands.add_parser(name, help=summary, add_help=False)
        parser.parse_args(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader, such as head, has what it wanted; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OWN_PACKAGES:
            raise
        print(f"error: {error}; install greenserve with the extra of this command, such as greenserve[serving]", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # before the command could take it
        print("error: interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
