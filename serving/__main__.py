"""`python -m serving`: the embedded server; `predict`, `status` and `config` are programs beside it."""

import sys

from city import program

SUBCOMMANDS = {
    "predict": "serving.client.commands:predict",
    "status": "serving.client.commands:status",
    "config": "serving.tf_serving.__main__",
}


def main(argv: list[str] | None = None, prog: str = "python -m serving") -> int:
    return program.run_subcommand(argv, prog, SUBCOMMANDS, _serve)


def _serve(argv: list[str], prog: str) -> int:
    # loaded only now: the programs beside the server need less than it does
    return program.load("serving.embedded.__main__")(argv, prog)


if __name__ == "__main__":
    sys.exit(main())
