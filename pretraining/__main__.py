"""`greenserve pretrain`: make a policy for any junction, and compare it with baselines on many streets."""

import sys

from city import program
from city.arguments import subcommands_parser

SUBCOMMANDS = {
    "train": ("pretraining.train_command", "train networks on many streets, and make one policy of the best"),
    "select": ("pretraining.select_command", "make one policy of the best of trained networks"),
    "evaluate": ("pretraining.evaluate_command", "compare policies and baselines on many streets"),
}
"""By name: the module, and the summary."""


def main(argv: list[str] | None = None, prog: str = "python -m pretraining") -> int:
    """Run a subcommand and return its exit code."""
    modules = {name: module for name, (module, _) in SUBCOMMANDS.items()}
    return program.run_subcommand(argv, prog, modules, _no_subcommand)


def _no_subcommand(argv: list[str], prog: str) -> int:
    """Handle --help; any other arguments are an error."""
    summaries = {name: summary for name, (_, summary) in SUBCOMMANDS.items()}
    parser = subcommands_parser(prog, "Make a policy for any junction, and compare it on many streets.", summaries)

    def run() -> int:
        parser.parse_args(argv)
        return 0

    return program.run(run)


if __name__ == "__main__":
    sys.exit(main())
