"""Signal commands as TraCI commands, and SUMO's answers to them."""

from collections.abc import Sequence

from traci import constants as tc

from controller.sumo import wire
from controller.sumo.connection import CommandRejected
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalCommand


def encode_commands(command: SignalCommand) -> list[bytes]:
    """Encode a signal command as TraCI commands. Raises TypeError for a command that the safety rules have not
    permitted."""
    signal = command.signal
    if type(command) is PermittedState:
        return [wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, signal, command.state)]
    if type(command) is not PermittedRelease:
        raise TypeError(f"only what the safety rules permit is sent to SUMO, not {command!r}")
    commands = [wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, signal, command.program)]
    if command.phase is not None:
        commands.append(wire.set_int(tc.CMD_SET_TL_VARIABLE, tc.TL_PHASE_INDEX, signal, command.phase))
    if command.remaining_s is not None:
        commands.append(wire.set_double(tc.CMD_SET_TL_VARIABLE, tc.TL_PHASE_DURATION, signal, command.remaining_s))
    return commands


def decode_rejections(answer: bytes, commands: Sequence[SignalCommand]) -> dict[str, str]:
    """SUMO's error text by signal, of the commands that it rejected."""
    if answer == wire.SET_OK * len(commands):
        return {}
    reader = wire.Reader(answer)
    rejections: dict[str, str] = {}
    for command in commands:
        for _ in encode_commands(command):
            try:
                reader.status()
            except CommandRejected as error:
                rejections[command.signal] = str(error)
    return rejections
