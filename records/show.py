"""`greenserve record show`: each decision of a time as a sentence."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict

from city.arguments import Parser
from city.errors import InputError
from controller.recording.run_start import movement_names_of
from controller.recording.sentences import (
    action_sentence,
    alarm_sentence,
    command_sentence,
    rejection_sentence,
    sentence,
)
from protos import policy_pb2 as pb
from records.record_flags import add_record, add_selection, check_times, open_record, selected_tls, subcommand
from records.record_reader import RecordedStep
from records.run_files import RunReader
from signals.movement_names import MovementNames


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Show each decision as a sentence: what the TL saw, what was chosen and how surely, what was "
        "permitted, and why not.",
    )
    add_record(parser)
    add_selection(parser, "show")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object a line, with the message of the record"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Print a line for each decision. Exit code 2 if the time has none."""
    reader = open_record(args)
    lines = 0
    for entry in _entries(reader, args):
        print(json.dumps(entry) if args.json else entry["sentence"])
        lines += 1
    # what is missing may be what the reader looks for
    for text in reader.missing:
        print(f"missing: {text}", file=sys.stderr)
    if not lines:
        raise InputError(
            f"{args.record}: has no decision of these TLs at that time; greenserve record info shows its times"
        )
    return 0


main = subcommand(parser, run)


def _entries(reader: RunReader, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of the command, in order. Raises InputError for an unknown TL."""
    check_times(args)
    tls = set(selected_tls(args, reader.city.contracts))
    contracts = {contract.tl: contract for contract in reader.city.contracts if contract.tl in tls}
    names = movement_names_of(reader.city)
    signals = {signal for contract in contracts.values() for signal in contract.signal_ids}
    for recorded in reader.steps(tls, args.from_s):
        if recorded.step.at_s >= args.to_s:
            break
        yield from _entries_of(recorded, contracts, signals, reader.city.driver, names)


def _entries_of(
    recorded: RecordedStep,
    contracts: Mapping[str, pb.PolicyContract],
    signals: set[str],
    driver: str,
    names: Mapping[str, MovementNames],
) -> Iterator[dict[str, Any]]:
    step = recorded.step
    for alarm in step.alarms:
        if alarm.signal in signals:
            yield {"sentence": alarm_sentence(alarm), "alarm": _as_dict(alarm)}
    for rejection in step.rejections:
        if rejection.signal in signals:
            yield {"sentence": rejection_sentence(rejection, step.at_s), "rejection": _as_dict(rejection)}
    for command in step.commands:
        if command.tl in contracts:
            yield {"sentence": command_sentence(command, step.at_s), "command": _as_dict(command)}
    for action in step.actions:
        # of the run, or of a TL that is shown
        if not action.target or action.target in contracts:
            yield {"sentence": action_sentence(action, step.at_s), "action": _as_dict(action)}
    for tl, tl_step in recorded.tls.items():
        # a step without either only reports what was shown
        acted = tl_step.HasField("decision") or any(states.commands or states.overrides for states in tl_step.states)
        if tl in contracts and acted:
            yield {"sentence": sentence(contracts[tl], tl_step, driver, names), "tl": tl, "step": _as_dict(tl_step)}


def _as_dict(message: Any) -> dict[str, Any]:
    """A message as protobuf's JSON has it, with the names of protos/record.proto; 64-bit integers are texts there."""
    values: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return values
