"""`greenserve pretrain`: make a policy for any junction, and compare it with baselines on many streets."""

import sys

from city.arguments import run_subcommand

SUBCOMMANDS = {
    "train": ("pretraining.train_command", "train a network on many streets: one policy for any junction"),
    "select": (
        "pretraining.select_command",
        "put trained networks through the gate, and keep the best one that passes",
    ),
    "evaluate": ("pretraining.evaluate_command", "compare policies and baselines on many streets"),
}
"""By name: the module, and the summary."""


def main(argv: list[str] | None = None, prog: str = "python -m pretraining") -> int:
    """Run a subcommand and return its exit code."""
    about = "Make a policy for any junction, and compare it on many streets."
    return run_subcommand(argv, prog, about, SUBCOMMANDS)


if __name__ == "__main__":
    sys.exit(main())
