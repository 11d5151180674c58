"""Settings as TraCI commands, and SUMO's word on them."""

from collections.abc import Sequence

from controller.safety import PermittedHandover, PermittedState
from controller.sumo import wire
from controller.sumo.link import Setting
from controller.sumo.wire import Refused


def commands_of(setting: Setting) -> list[bytes]:
    """What sets a signal; TypeError for anything that the safety rules have not permitted."""
    signal = setting.signal
    if type(setting) is PermittedState:
        return [wire.set_text(wire.SET_TL, wire.STATE, signal, setting.state)]
    if type(setting) is not PermittedHandover:
        raise TypeError(f"only what the safety rules permit reaches SUMO, not {setting!r}")
    commands = [
        wire.set_text(wire.SET_TL, wire.PROGRAM, signal, setting.program),
        wire.set_int(wire.SET_TL, wire.PHASE, signal, setting.phase),
    ]
    if setting.remaining_s is not None:
        commands.append(wire.set_double(wire.SET_TL, wire.PHASE_DURATION, signal, setting.remaining_s))
    return commands


def refusals_of(answer: bytes, settings: Sequence[Setting]) -> dict[str, str]:
    """Signals that SUMO refused to set, and its words."""
    if answer == wire.SET_OK * len(settings):
        return {}
    reader = wire.Reader(answer)
    refusals: dict[str, str] = {}
    for setting in settings:
        for _ in commands_of(setting):
            try:
                reader.status()
            except Refused as error:
                refusals[setting.signal] = str(error)
    return refusals
