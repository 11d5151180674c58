"""`python -m serving`: the embedded server, and the subcommands `predict`, `status`, `verify` and `config`."""

import sys

from city import program

SUBCOMMANDS = {
    "predict": "serving.client.commands:predict",
    "status": "serving.client.commands:status",
    "verify": "serving.verify_command",
    "config": "serving.tf_serving.__main__",
}


def main(argv: list[str] | None = None, prog: str = "python -m serving") -> int:
    # not imported above: the subcommands need fewer packages than the server
    server = "serving.embedded.__main__"
    return program.run_subcommand(argv, prog, SUBCOMMANDS, lambda own, name: program.load(server)(own, name))


if __name__ == "__main__":
    sys.exit(main())
