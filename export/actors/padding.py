"""One TL's actor out of a policy that several TLs share, padded by SuperSuit to the largest TL.

SuperSuit pads observations with zeros and action spaces with choices
(`pad_observations_v0` and `pad_action_space_v0` of https://github.com/Farama-Foundation/SuperSuit).
"""

from dataclasses import replace

from city.errors import InputError
from export.actors import Actor
from export.actors.steps import FirstChoice, Pad


def for_tl(actor: Actor, inputs: int, choices: int) -> Actor:
    """The shared actor with a TL's inputs and choices. Raises InputError if the TL needs more than the policy has.

    The weights are not cut, so that a fleet stores them once for all TLs.
    """
    for kind, required, shared in (("inputs", inputs, actor.inputs), ("choices", choices, actor.outputs)):
        if required > shared:
            raise InputError(
                f"has {shared} {kind}, and this TL needs {required}; use the SUMO network of the policy's training"
            )
    return replace(actor, steps=(Pad(inputs, actor.inputs), *actor.steps, FirstChoice(choices)))
