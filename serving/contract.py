"""The policy contract: what a policy needs from the street, and what its inputs and outputs mean.

Functions that parse and check the message of `protos/policy.proto`. Exporter,
client and controller share them, so that sizes and the order of features are
computed in one place.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from protos import policy_pb2 as pb

DEFAULT_SIGNATURE = "serving_default"
POLICY_SIGNATURE = "policy"
INPUT, ACTION = "observation", "action"
SCORES = "scores"
"""A fleet's second output: probabilities or q-values of its categorical members."""
PROBABILITIES, Q_VALUES = "probabilities", "q_values"
"""Names of a categorical model's second output."""
POLICY_INPUT, POLICY_OUTPUT = "rows", "policy"

JSON_FILE = Path("assets.extra") / "policy.json"
"""Path of the contract as JSON in a version's folder, for readers without TensorFlow."""
CATEGORICAL, FLEET = "categorical", "fleet"


class ContractError(ValueError):
    """A policy contract is malformed or does not fit its use."""


def check(contract: pb.PolicyContract) -> None:
    """Raise ContractError unless the contract is one TL's, complete and consistent in itself.

    Each dialect checks its own fields (signals/dialects).
    """
    subject = f"the contract of {contract.tl}"
    if contract.members:
        raise ContractError(f"{contract.tl} is a fleet of {len(contract.members)} TLs, not one TL's policy")
    if contract.missing:
        raise ContractError(
            f"{subject} is incomplete: {', '.join(contract.missing)} missing; "
            "export it again with a city.toml that describes the TL and its network"
        )
    ids = [signal.id for signal in contract.signals]
    if not ids or ids != list(contract.signal_ids):
        raise ContractError(f"{subject} lists signals {list(contract.signal_ids)} but describes {ids}; export it again")
    for signal in contract.signals:
        phases = {phase.state for phase in signal.phases}
        if wrong := [state for state in signal.greens if state not in phases]:
            raise ContractError(
                f"{subject} lists green {wrong[0]!r}, which is not a phase of signal {signal.id}; export it again"
            )
    for name, value in (("observation", contract.observation.size), ("action", contract.action.size)):
        if value < 1:
            raise ContractError(f"{subject} has {name} size {value}; export it again")
    if len(contract.observation.features) != contract.observation.size:
        raise ContractError(
            f"{subject} lists {len(contract.observation.features)} features for an observation of "
            f"{contract.observation.size}; export it again"
        )


def check_fleet(contract: pb.PolicyContract) -> None:
    """Raise ContractError unless every column of a fleet belongs to exactly one member.

    The members' contracts may be incomplete. A fleet of version 0.1 has no scores.
    """
    if not contract.members:
        raise ContractError(f"{contract.tl} is one TL's contract, not a fleet")
    observation_end = action_end = score_end = 0
    has_scores = any(member.score_size for member in contract.members)
    tls: set[str] = set()
    for member in contract.members:
        single, is_categorical = member.contract, member.contract.action.kind == CATEGORICAL
        columns = 1 if is_categorical else single.action.size
        choices = single.action.size if has_scores and is_categorical else 0
        score_begin = score_end if choices else 0
        for is_wrong, reason in (
            (member.tl in tls, f" lists {member.tl} twice"),
            (member.tl != single.tl, f" lists {member.tl} with the contract of {single.tl}"),
            (
                (member.observation_begin, member.action_begin) != (observation_end, action_end),
                f": the columns of {member.tl} do not begin at the end of the previous TL's",
            ),
            (
                (member.observation_size, member.action_size) != (single.observation.size, columns) or columns < 1,
                f": {member.tl} has {member.observation_size} inputs and {member.action_size} outputs, but its "
                f"contract has {single.observation.size} and {columns}",
            ),
            (
                (member.score_begin, member.score_size) != (score_begin, choices),
                f": the scores of {member.tl} are {member.score_size} columns from {member.score_begin}, not {choices} "
                f"from {score_begin}",
            ),
        ):
            if is_wrong:
                raise ContractError(f"fleet {contract.tl}{reason}; export it again")
        tls.add(member.tl)
        score_end += choices
        observation_end += member.observation_size
        action_end += member.action_size
    if (contract.observation.size, contract.action.size) != (observation_end, action_end):
        raise ContractError(
            f"fleet {contract.tl} has {contract.observation.size} inputs and {contract.action.size} outputs, "
            f"but its members have {observation_end} and {action_end}; export it again"
        )


def scores_name(contract: pb.PolicyContract) -> str | None:
    """The name of a TL's model's second output, of one value per choice; None for a continuous policy."""
    return (contract.action.scores or PROBABILITIES) if contract.action.kind == CATEGORICAL else None


def parse(data: bytes) -> pb.PolicyContract:
    """Parse the bytes of a `policy` output. Raises ContractError."""
    try:
        contract = pb.PolicyContract.FromString(data)
    except DecodeError as error:
        raise ContractError(f"not a policy contract: {error}") from None
    if not contract.tl:
        raise ContractError("not a policy contract: its TL is missing")
    return contract


def from_saved_model(folder: Path) -> pb.PolicyContract:
    """Read the contract in a version's assets.extra/policy.json. Raises ContractError."""
    path = folder / JSON_FILE
    try:
        return json_format.Parse(path.read_text(encoding="utf-8"), pb.PolicyContract())
    except (OSError, UnicodeDecodeError, json_format.ParseError) as error:
        raise ContractError(f"{path}: cannot be read as a policy contract: {error}") from None


def to_json(contract: pb.PolicyContract) -> Iterator[str]:
    """The contract as the JSON text of assets.extra/policy.json, in parts: one for each member of a fleet.

    A conversion takes twelve times as much memory as its text.
    """

    def text_of(message: Message) -> str:
        return json_format.MessageToJson(message, preserving_proto_field_name=True)

    own = pb.PolicyContract()
    own.CopyFrom(contract)
    own.ClearField("members")
    if not contract.members:
        yield text_of(own) + "\n"
        return
    yield text_of(own).removesuffix("\n}") + ',\n  "members": ['
    for k, member in enumerate(contract.members):
        yield ("\n" if k == 0 else ",\n") + textwrap.indent(text_of(member), "    ")
    yield "\n  ]\n}\n"


def lanes(contract: pb.PolicyContract) -> list[str]:
    """All incoming lanes of the TL, in the order of the features."""
    return [lane for signal in contract.signals for lane in signal.lane_ids]
