"""The policy contract: what a policy needs from the street and what its numbers mean.

`protos/policy.proto` is its form; here is what makes and checks one. Exporter,
server, client and controller share these functions, so a size or an order of
features is computed in one place only.
"""

from collections.abc import Iterable, Sequence

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from protos import policy_pb2 as pb

SIGNATURE = "serving_default"
POLICY_SIGNATURE = "policy"
INPUT, ACTION, PROBABILITIES = "observation", "action", "probabilities"
POLICY_INPUT, POLICY_OUTPUT = "rows", "policy"

SUMO_RL, SAPPO = "sumo-rl", "sappo"
CATEGORICAL, FLEET = "categorical", "fleet"
PLAN_ACTIONS = ("offset", "gr", "gro")
_SAPPO_BLOCKS = {"d": ("density",), "v": ("volume",), "vd": ("density", "volume"), "vdd": ("volume_per_density",)}


class ContractError(ValueError):
    """A policy contract is malformed, or does not fit; the text says where."""


def features(dialect: str, state: str, signals: Sequence[pb.Signal], greens: int = 0) -> list[pb.Feature]:
    """The observation's features in order, as the dialect's trainer has them.

    sumo-rl: one-hot of the green phases (`greens` of them), min_green bit, then
    density per lane and queue per lane of the one signal. sappo: the blocks of
    `state` over all signals' lanes, then the phase of every signal.
    """
    lanes = [(signal.id, lane) for signal in signals for lane in signal.lane_ids]
    if dialect == SUMO_RL:
        one = signals[0].id
        head = [pb.Feature(kind="phase", signal_id=one)] * greens + [pb.Feature(kind="min_green", signal_id=one)]
        return head + [pb.Feature(kind=k, signal_id=s, lane_id=lane) for k in ("density", "queue") for s, lane in lanes]
    blocks = [pb.Feature(kind=k, signal_id=s, lane_id=lane) for k in _SAPPO_BLOCKS[state] for s, lane in lanes]
    return blocks + [pb.Feature(kind="phase", signal_id=signal.id) for signal in signals]


def action_size(kind: str, signals: int, greens: int = 0) -> int:
    """Values of one decision: n choices of a categorical policy, else A."""
    if kind == CATEGORICAL:
        return greens
    return 2 * signals if kind == "gro" else signals


def check(policy: pb.Policy) -> None:
    """Raise ContractError unless the contract is complete and agrees with itself."""
    if policy.members:
        raise ContractError(f"{policy.tl} is a fleet of {len(policy.members)} TLs, not one TL's policy")
    if policy.missing:
        raise ContractError(
            f"the contract of {policy.tl} is incomplete: it lacks {', '.join(policy.missing)}; "
            "export it again with a city.toml that describes the TL and its network"
        )
    ids = [signal.id for signal in policy.signals]
    if not ids or ids != list(policy.signal_ids):
        raise ContractError(f"the contract of {policy.tl} lists signals {list(policy.signal_ids)} but describes {ids}")
    for name, value in (("observation", policy.observation.size), ("action", policy.action.size)):
        if value < 1:
            raise ContractError(f"the contract of {policy.tl} gives {name} size {value}")
    kinds = {SUMO_RL: (CATEGORICAL,), SAPPO: (*PLAN_ACTIONS, "kc")}.get(policy.observation.dialect)
    if kinds is None:
        raise ContractError(f"the contract of {policy.tl} has unknown dialect {policy.observation.dialect!r}")
    if policy.action.kind not in kinds:
        raise ContractError(f"the contract of {policy.tl} has action {policy.action.kind!r}, which is none of {', '.join(kinds)}")
    if policy.observation.dialect == SAPPO and policy.observation.state not in _SAPPO_BLOCKS:
        raise ContractError(f"the contract of {policy.tl} has unknown state {policy.observation.state!r}")
    greens = len(green_states(phase.state for phase in policy.signals[0].phases))
    wanted = features(policy.observation.dialect, policy.observation.state, policy.signals, greens)
    if list(policy.observation.features) != wanted or policy.observation.size != len(wanted):
        raise ContractError(
            f"the contract of {policy.tl} lists {len(policy.observation.features)} features for an observation of "
            f"{policy.observation.size}, but its signals give {len(wanted)}, or others"
        )
    size = action_size(policy.action.kind, len(ids), greens)
    if policy.action.size != size:
        raise ContractError(f"the contract of {policy.tl} gives action size {policy.action.size}, but its signals give {size}")
    if policy.action.kind in PLAN_ACTIONS:
        positive: dict[str, float] = {
            "control_cycle": policy.timing.control_cycle,
            "offset_range": policy.action.offset_range,
        }
    else:
        positive = {"decision_interval_s": policy.timing.decision_interval_s}
    for name, number in positive.items():
        if not number >= 1:
            raise ContractError(f"the contract of {policy.tl} has {name} {number:g}; it must be 1 at least")


def check_fleet(policy: pb.Policy) -> None:
    """Raise ContractError unless a fleet's members share out its columns, each column to one of them.

    Whether a member's own contract is complete is `check`'s question.
    """
    if not policy.members:
        raise ContractError(f"{policy.tl} is one TL's policy, not a fleet")
    observation = action = 0
    seen: set[str] = set()
    for member in policy.members:
        own = member.policy
        columns = 1 if own.action.kind == CATEGORICAL else own.action.size
        if member.tl != own.tl or member.tl in seen:
            raise ContractError(f"fleet {policy.tl} lists {member.tl} {'twice' if member.tl in seen else f'as {own.tl}'}")
        if (member.observation_begin, member.action_begin) != (observation, action):
            raise ContractError(f"fleet {policy.tl}: the columns of {member.tl} do not follow those before it")
        if (member.observation_size, member.action_size) != (own.observation.size, columns) or columns < 1:
            raise ContractError(f"fleet {policy.tl}: the columns of {member.tl} are not those of its contract")
        seen.add(member.tl)
        observation += member.observation_size
        action += member.action_size
    if (policy.observation.size, policy.action.size) != (observation, action):
        raise ContractError(
            f"fleet {policy.tl} takes {policy.observation.size} numbers and gives {policy.action.size}, "
            f"but its members take {observation} and give {action}"
        )


def parse(data: bytes) -> pb.Policy:
    """A contract out of the bytes of a `policy` output. Raises ContractError."""
    try:
        policy = pb.Policy.FromString(data)
    except DecodeError as error:
        raise ContractError(f"not a policy contract: {error}") from None
    if not policy.tl:
        raise ContractError("not a policy contract: it names no TL")
    return policy


def to_json(policy: pb.Policy) -> str:
    """The contract for people, as in assets.extra/policy.json."""
    return json_format.MessageToJson(policy, preserving_proto_field_name=True) + "\n"


def lanes(policy: pb.Policy) -> list[str]:
    """Every incoming lane of the TL, in feature order."""
    return [lane for signal in policy.signals for lane in signal.lane_ids]


def green_states(phases: Iterable[str]) -> list[str]:
    """The green phases' states: no `y`, not all `r`/`s` (sumo-rl's rule)."""
    return [s for s in phases if "y" not in s and s.count("r") + s.count("s") != len(s)]
