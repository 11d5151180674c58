"""A policy that several TLs share, cut to one TL: SuperSuit pads observations with zeros and action spaces with choices.

Source: `pad_observations_v0` and `pad_action_space_v0` of https://github.com/Farama-Foundation/SuperSuit.
"""

from dataclasses import replace

from city.errors import InputError
from export.actors import Actor
from export.actors.steps import FirstChoice, Pad

SUPERSUIT = "supersuit"


def for_tl(tl: str, label: str, actor: Actor, inputs: int, choices: int) -> Actor:
    """The shared actor with a TL's own numbers of inputs and choices. Raises InputError if the TL needs more than it has.

    The weights stay as they are, so that a fleet stores them once for all TLs.
    """
    for kind, own, shared in (("inputs", inputs, actor.inputs), ("choices", choices, actor.outputs)):
        if own > shared:
            raise InputError(
                f"{tl}: needs {own} {kind}, but the shared policy of {label} has {shared}; use the SUMO network that the policy "
                "was trained on"
            )
    return replace(actor, steps=(Pad(inputs, actor.inputs), *actor.steps, FirstChoice(choices)))
