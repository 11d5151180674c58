"""A TL's decision step as a sentence: what it saw, what it chose, what was permitted, and why not."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from city.names import listed
from city.printable import printable
from city.sumo_files import time_text
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from serving.contract import CATEGORICAL
from signals.movement_names import MovementNames
from signals.policy_signals import greens_of
from signals.safety.conflicts import EXPLANATIONS, OverrideReason

MAX_LANES = 4
"""Lanes that a sentence names: those with the most on them."""
MAX_CHANGES = 6
"""States that a sentence names for a signal."""
MIN_SHARE = 0.005
"""A smaller share of a lane's capacity is shown as empty."""
_SHARES = {"queue": "queues on", "density": "vehicles on"}
"""By kind of feature, a share of a lane's capacity, its name in a sentence."""
_YELLOW = str.maketrans("Gg", "yy")
"""From a green to the yellow after it."""
_RELATIVE = ("density", "volume", "volume_per_density")
"""Features of the dialect sappo, relative to the TL's fullest lane."""
_COUNTS = ("vehicles_near", "vehicles_middle", "vehicles_far")


def sentence(
    contract: pb.PolicyContract, step: record.TlStep, driver: str = "", names: Mapping[str, MovementNames] = {}
) -> str:
    """A TL's part of a decision step.

    Args:
        contract: the TL's.
        step: its message.
        driver: what decided in the place of the policies, such as max-pressure.
        names: by signal, the names of its movements.
    """
    parts = []
    if step.HasField("decision"):
        parts += [*_seen(contract, step.decision, names), _chosen(contract, step, driver, names)]
        if step.decision.mode_before != step.mode:
            parts.append(f"control mode {mode_name(step.decision.mode_before)} -> {mode_name(step.mode)}")
        elif step.mode != record.TlStep.POLICY:
            parts.append(f"control mode {mode_name(step.mode)}")
    parts += _states(contract, step, names)
    text = _named_once(contract, "; ".join(parts), names) or "has nothing to change"
    return printable(f"{time_text(step.at_s)} {contract.tl}: {text}")


def alarm_sentence(alarm: record.Alarm) -> str:
    """An alarm of the monitors."""
    return printable(f"{time_text(alarm.at_s)} signal {alarm.signal}: alarm {alarm.rule}: {alarm.message}")


def rejection_sentence(rejection: record.Rejection, at_s: float) -> str:
    """A command that SUMO rejected."""
    return printable(f"{time_text(at_s)} signal {rejection.signal}: SUMO rejected a command: {rejection.reason}")


def command_sentence(command: record.OperatorCommand, at_s: float) -> str:
    """An operator's command to a TL."""
    before, after = mode_name(command.mode_before), mode_name(command.mode)
    change = f"{before} -> {after}" if before != after else f"it stays in {after}"
    why = f" ({command.reason})" if command.reason else ""
    return printable(f"{time_text(at_s)} {command.tl}: {command.author} set it to {command.wanted}{why}: {change}")


def action_sentence(action: record.OperatorAction, at_s: float) -> str:
    """An operator's command that sets no mode."""
    what = " ".join(filter(None, (action.action, action.target, action.value)))
    return printable(f"{time_text(at_s)} {action.author}: {what}")


def mode_name(value: int) -> str:
    """A control mode's name; the number of one that this version does not know."""
    return _enum_name(record.TlStep.ControlMode, value)


def reason_name(value: int) -> str:
    """The name of an override's reason; the number of one that this version does not know."""
    return _enum_name(record.TlStep.OverrideReason, value)


def explanation(reason: int) -> str:
    """Why a request was not permitted, by the record's value of its reason."""
    name = reason_name(reason)
    return EXPLANATIONS[OverrideReason(name)] if name in list(OverrideReason) else f"reason {name}"


def override_text(override: record.Override, names: Mapping[str, MovementNames]) -> str:
    """The requested state that was not permitted, by its movements, and why. `names`: by signal."""
    requested = names.get(override.signal, MovementNames()).of_state(override.requested)
    return f"not {requested}: {explanation(override.reason)}"


def _enum_name(kind: Any, value: int) -> str:
    named = kind.DESCRIPTOR.values_by_number.get(value)
    return str(named.name).lower() if named is not None else str(value)


def _named_once(contract: pb.PolicyContract, text: str, names: Mapping[str, MovementNames]) -> str:
    """A text in which each green has the names of its movements at its first mention alone."""
    if contract.action.kind == CATEGORICAL and contract.signals:
        for index in range(len(greens_of(contract.signals[0]))):
            green = _phase(contract, 0, index, names)
            before, found, after = text.partition(green)
            text = before + found + after.replace(green, f"green {index}")
    return text


def _seen(contract: pb.PolicyContract, decision: record.Decision, names: Mapping[str, MovementNames]) -> list[str]:
    """The phases, and of the observation what matters most in the contract's dialect."""
    # a driver has phases of its own, which the record does not have
    phases = (
        [] if _is_drivers(decision) else [_phase(contract, k, phase, names) for k, phase in enumerate(decision.phases)]
    )
    current = [f"current {', '.join(phases)}"] if phases else []
    features = contract.observation.features
    if phases and any(feature.kind == "min_green" for feature in features) and not decision.min_green_passed:
        current[0] += ", min green not passed"
    if len(features) != len(decision.observation):
        return [*current, f"saw {len(decision.observation)} values, which the contract does not describe"]
    labels = {
        lane: f"{name} of {signal}" if len(contract.signal_ids) > 1 else name
        for signal in contract.signal_ids
        for lane, name in names.get(signal, MovementNames()).lane_names.items()
    }
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for feature, value in zip(features, decision.observation, strict=True):
        if feature.lane_id:
            values[feature.kind][labels.get(feature.lane_id, feature.lane_id)] = value
    return [*current, f"saw {_lanes(values, contract.observation.normalisation)}"]


def _lanes(values: Mapping[str, Mapping[str, float]], normalisation: str) -> str:
    """The lanes with the most on them. `values`: by kind of feature and lane."""
    if "vehicles_near" in values:
        return _vehicles(values)
    if normalisation == "block-maximum":
        kind = next((kind for kind in _RELATIVE if kind in values), "")
        name = f"{kind.replace('_', ' ')} relative to the fullest lane"
        return _most(name, values.get(kind, {}), lambda lane, value: f"{lane} {value:.2g}", MIN_SHARE)
    for kind, name in _SHARES.items():
        if kind in values:
            return _most(name, values[kind], lambda lane, value: f"{value:.0%} of {lane}", MIN_SHARE)
    # a dialect of the user's own
    pairs = {f"{kind} of {lane}": value for kind, lanes in values.items() for lane, value in lanes.items() if value}
    return _most("features", pairs, lambda feature, value: f"{feature} {value:.3g}", -math.inf)


def _vehicles(values: Mapping[str, Mapping[str, float]]) -> str:
    """The vehicles on the fullest lanes, and how many of them halt."""
    counts = {lane: sum(values[kind].get(lane, 0.0) for kind in _COUNTS) for lane in values["vehicles_near"]}
    halting, waits = values.get("halting", {}), values.get("longest_wait", {})

    def text(lane: str, count: float) -> str:
        halt = f"{halting.get(lane, 0):.3g} halting, longest wait {waits.get(lane, 0):.3g} s"
        return f"{lane} {count:.3g} ({halt})" if halting.get(lane) else f"{lane} {count:.3g}"

    return _most("vehicles", counts, text, 0.0)


def _most(name: str, values: Mapping[str, float], text: Callable[[str, float], str], above: float) -> str:
    """The largest of the values above a bound. `text`: of a key and its value."""
    shown = {key: value for key, value in values.items() if not value <= above}  # NaN is shown, too
    if not shown:
        return f"no {name.removesuffix(' on')}"
    largest = sorted(shown, key=lambda key: -shown[key])
    return f"{name} {listed([text(key, shown[key]) for key in largest], MAX_LANES)}"


def _phase(contract: pb.PolicyContract, signal: int, index: int, names: Mapping[str, MovementNames]) -> str:
    """A green, or a phase of the program, of the contract's signal with a number."""
    is_green = contract.action.kind == CATEGORICAL
    text = f"{'green' if is_green else 'phase'} {index}"
    if signal >= len(contract.signals):
        return text
    message = contract.signals[signal]
    states = greens_of(message) if is_green else [phase.state for phase in message.phases]
    if 0 <= index < len(states):
        text = f"{text} ({names.get(message.id, MovementNames()).of_states(states)[index]})"
    return f"{text} of {message.id}" if len(contract.signals) > 1 else text


def _state(contract: pb.PolicyContract, signal: str, state: str, names: Mapping[str, MovementNames]) -> str:
    """A state of a signal: a green of the contract, the yellow after one, or its movements."""
    for k, message in enumerate(contract.signals):
        is_chosen = message.id == signal and contract.action.kind == CATEGORICAL
        for index, green in enumerate(greens_of(message) if is_chosen else []):
            if state in (green, yellow := green.translate(_YELLOW)):
                return ("yellow after " if state == yellow else "") + _phase(contract, k, index, names)
    return names.get(signal, MovementNames()).of_state(state)


def _chosen(contract: pb.PolicyContract, step: record.TlStep, driver: str, names: Mapping[str, MovementNames]) -> str:
    decision = step.decision
    if _is_drivers(decision):
        return f"{driver or 'another driver than the policy'} decided"
    if decision.error:
        return f"got no answer ({decision.failure})"
    by = f" by {decision.model} version {decision.version}" if decision.model else ""
    if decision.failure:
        return f"got an invalid answer{by} ({decision.failure})"
    choice = _action(contract, decision, by, names)
    if step.mode != record.TlStep.POLICY:
        return f"would have chosen {choice}; not followed in this control mode"
    if contract.action.kind != CATEGORICAL:
        return f"chose {choice}"
    is_other = len(decision.action) == len(decision.phases) == 1 and decision.action[0] != decision.phases[0]
    if not is_other:
        return f"kept {choice}"
    waits = "" if decision.min_green_passed else "; ignored until its min green has passed"
    return f"chose {choice}{waits}"


def _is_drivers(decision: record.Decision) -> bool:
    """True if a driver decided in the place of the policies, so that a missing answer is no failure."""
    return bool(decision.error) and not decision.failure


def _action(contract: pb.PolicyContract, decision: record.Decision, by: str, names: Mapping[str, MovementNames]) -> str:
    """The policy's answer. `by`: the model's name."""
    kind, action = contract.action.kind, list(decision.action)
    if kind == CATEGORICAL and len(action) == 1 and action[0] in range(max(contract.action.size, 1)):
        return _phase(contract, 0, int(action[0]), names) + by + _scores(contract, decision, int(action[0]), names)
    if kind == "kc" and len(action) == len(contract.signal_ids):
        bound = contract.action.actionp
        changes = ", ".join(
            f"change {signal} ({value:.3g} >= {bound:g})"
            if value >= bound
            else f"keep {signal} ({value:.3g} < {bound:g})"
            for signal, value in zip(contract.signal_ids, action, strict=True)
        )
        return changes + by
    return f"{kind or 'the action'} {', '.join(f'{value:.3g}' for value in action)}{by}"


def _scores(
    contract: pb.PolicyContract, decision: record.Decision, index: int, names: Mapping[str, MovementNames]
) -> str:
    """The score of a choice, and the best of the others."""
    scores = list(decision.scores)
    if index >= len(scores):
        return ""
    name = "value" if contract.action.scores == "q_values" else "probability"
    text = f": {name} {scores[index]:.3g}"
    others = [k for k in range(len(scores)) if k != index]
    if others:
        best = max(others, key=lambda k: scores[k])
        # an exported policy takes the highest; a policy with a rule of its own may not
        rank = "below" if scores[index] < scores[best] else f"is the highest of {len(scores)}, next best"
        text += f" {rank} {_phase(contract, 0, best, names)} with {scores[best]:.3g}"
    return text


def _states(contract: pb.PolicyContract, step: record.TlStep, names: Mapping[str, MovementNames]) -> list[str]:
    """The permitted states second by second, the commands that went out, and why a request was not permitted."""
    changes: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    handed: dict[str, None] = {}
    reasons: dict[tuple[str, str], dict[int, None]] = {}
    for states in step.states:
        moment = "" if states.at_s == step.at_s else f" at {time_text(states.at_s)}"
        # without a request, the signals run their programs or are on the way there
        commanded = {command.signal for command in states.commands if command.state}
        for signal, state in zip(contract.signal_ids, states.permitted, strict=False):
            if (states.requested or signal in commanded) and last.get(signal) != state:
                last[signal] = state
                changes.setdefault(signal, []).append(f"{_state(contract, signal, state, names)}{moment}")
        for command in states.commands:
            if not command.state:
                handed[f"{command.signal} handed to its program {command.program}{moment}"] = None
        for override in states.overrides:
            reasons.setdefault((override.signal, override.requested), {})[override.reason] = None
    named = len(contract.signal_ids) > 1
    parts = [f"{signal if named else ''} {listed(states, MAX_CHANGES)}".strip() for signal, states in changes.items()]
    texts = [f"the safety rules permitted {', '.join(parts)}"] if parts else []
    for (signal, requested), why in reasons.items():
        of = f" of {signal}" if named else ""
        reasons_text = ", ".join(explanation(reason) for reason in why)
        texts.append(f"not {_state(contract, signal, requested, names)}{of}: {reasons_text}")
    return [*texts, *handed]
