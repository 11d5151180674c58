"""`greenserve COMMAND ...`: the same programs as `python -m export`, `python -m serving`, ...

An installed command is not shadowed by a user's own controller.py or serving.py in
the city's folder, as `python -m controller` is.
"""

import sys
from pathlib import Path

from city import program
from city.arguments import run_subcommand
from city.version import VERSION

COMMANDS = {
    "city": ("greenserve.__main__:city", "write a first city.toml for a SUMO network"),
    "export": ("export.__main__", "turn trained actors into SavedModels"),
    "inspect": ("export.show.inspect_checkpoint", "list a checkpoint's variables and what an export would use"),
    "describe": ("export.show.describe", "print a model's contract and signatures"),
    "fleet": ("export.fleets.export_fleet", "build one SavedModel out of many TLs' models"),
    "train": ("greenserve.__main__:train", "train TLs by PPO, beside TLs that are served"),
    "pretrain": ("pretraining.__main__", "make a policy for any junction, and compare it on many streets"),
    "rounds": ("rounds.__main__", "train groups of TLs in rounds, on this machine or on a Ray cluster"),
    "evaluate": ("evaluation.__main__", "compare served policies with baselines on the same demand"),
    "rollout": ("rollout.__main__", "bring a new model number onto the street, on evidence"),
    "ledger": ("rollout.ledger_command", "show which model number drove which TL, when, and on what evidence"),
    "card": ("rollout.model_card", "write the card of a model"),
    "serve": ("serving.__main__", "run the embedded server"),
    "predict": ("serving.client.commands:predict", "request a prediction from a served model"),
    "status": ("serving.client.commands:status", "show the served models and versions"),
    "verify": ("serving.verify_command", "verify the signatures of models"),
    "check": ("controller.check", "compare contracts with the network, without running"),
    "detectors": ("records.atspm.detectors", "write detectors (induction loops) for a city's signals"),
    "control": ("controller.__main__", "control a city's signals with served policies"),
    "record": ("records.command", "read, draw, export and repair the records of control --record"),
    "replay": ("records.replay_command", "decide a recorded run again and compare it, or play it in a browser"),
    "ctl": ("controller.operator.ctl", "watch a running controller and command it"),
    "guard": ("controller.guard.__main__", "hold the connection to SUMO, in case a controller crashes"),
}
"""By name: the entry point (see `program.load`) and the summary."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    about = "Export, serve and run trained traffic-signal policies."
    return run_subcommand(argv, "greenserve", about, COMMANDS, f"greenserve {VERSION}")


def city(argv: list[str], prog: str) -> int:
    """`greenserve city`; it is in this module because package `city` may not import dialects."""
    from city import init
    from city.config import TL
    from city.network import SignalNetwork
    from signals import contract, dialects, policy_signals
    from signals.safety.conflicts import yielding_states

    def choose(network: SignalNetwork) -> init.Choice:
        """The program and greens of a signal's policy. Raises InputError if no policy can control it."""
        (signal,) = policy_signals.of_tl(TL((network.id,), init.SUMO_RL, network.id), [network])
        contract.check_controllable(network.id, signal)
        return init.Choice(signal.program.id, signal.greens)

    return program.run(lambda: init.main(argv, dialects.names(), choose, yielding_states, prog, _advice))


def _advice(path: Path) -> list[str]:
    """Advice about a new city.toml. Raises InputError."""
    from city import config, init, network
    from signals import change_times

    described = config.load(path)
    times = change_times.times_without_model(described, network.of_city(described), described.tls)
    pretrained = "greenserve export --pretrained --tl all"
    if any(tl.dialect != init.STREET for tl in described.tls.values()):
        pretrained = f'set dialect = "{init.STREET}" in the tables [tl.NAME], then {pretrained}'
    return [f"A policy that needs no training: {pretrained}", *change_times.times_to_train_with(times)]


def train(argv: list[str], prog: str) -> int:
    """`greenserve train`; `greenserve train rounds` is the old name of `greenserve rounds`, until release 0.4."""
    old_names = {"rounds": "rounds.__main__"}
    return program.run_subcommand(argv, prog, old_names, lambda own, name: program.load("training.__main__")(own, name))


if __name__ == "__main__":
    sys.exit(main())
