"""An operated run without SUMO: a loop that notes what commands change, and a thread that applies them."""

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from controller.alarms import Alarms
from controller.events import OperatorCommand
from controller.operator import operator_token
from controller.operator.command_queue import CommandQueue
from controller.operator.control_client import ControlClient
from controller.operator.control_server import ControlServer
from controller.operator.open_rollouts import OpenRollouts
from controller.operator.run_state import RunState
from controller.operator.saved_modes import SavedModes
from controller.operator.service import OperatorService
from controller.pace import Pace
from controller.policies.served_contracts import ComparedContracts
from protos import policy_pb2
from serving.client.tls_files import ChangingTls
from signals.fallback.control_mode import ModeState, operator_mode

TLS = ("SA101", "SA102", "SA103")


def set_modes(tls, mode, author, for_s=0.0, reason=""):
    """A command as `command_of` takes it: (method of the queue, its arguments)."""
    return "set_modes", tls, mode, for_s, reason, author


def pin(tl, version, author, for_s=0.0, then=None):
    """A command as `command_of` takes it."""
    return "pin_model", tl, version, for_s, then, author


def command_of(queue, command):
    """A command of the queue, from its method's name and arguments."""
    method, *arguments = command
    return functools.partial(getattr(queue, method), *arguments)


class Loop:
    """The part of a decision loop that commands change; each TL has the real state machine."""

    def __init__(self, tls=TLS, now=0.0):
        self.now, self.actions, self.commands = now, [], []
        self.intersections = {tl: SimpleNamespace(state=ModeState()) for tl in tls}

    def set_mode(self, tl, wanted, author, reason=""):
        x = self.intersections[tl]
        before, x.state = x.state.mode, operator_mode(x.state, wanted, self.now)
        self.commands.append(OperatorCommand(tl, wanted, author, before, x.state.mode, reason))
        return self.commands[-1]

    def note_action(self, action):
        self.actions.append(action)

    def modes(self):
        return {tl: x.state.mode.name.lower() for tl, x in self.intersections.items()}


class Pins:
    """Policies of which every version can be pinned, until `refusal` is set."""

    def __init__(self, compared=None):
        self.pinned, self.refusal = {}, None
        self._compared = compared or ComparedContracts(TLS, (), ())

    def compare_contracts(self):
        return self._compared

    def check_pin(self, tl, version):
        if self.refusal is not None:
            raise self.refusal

    def pin(self, tl, version):
        self.pinned = {**self.pinned, tl: version}


def contracts(tls=TLS):
    return [policy_pb2.PolicyContract(tl=tl, signal_ids=[f"signal_{tl}"]) for tl in tls]


class OperatedRun:
    """The parts of a run that an operator commands, wired as the controller wires them."""

    def __init__(
        self, path=None, pins=None, loop=None, policy="served", run_contracts=None, keeps_history=False, ledger=None
    ):
        run_contracts = run_contracts or contracts()
        self.state = RunState(run_contracts, keeps_history)
        self.loop, self.pins, self.pace = loop or Loop(self.state.tls), pins, Pace()
        self.alarms = Alarms(self.state.layout.tl_of_signal, len(run_contracts), wall_clock=lambda: 1e9)
        self.saved = SavedModes(path)
        self.wall_s = 0.0
        self.queue = CommandQueue(self.state, self.pace, self.alarms, self.saved, pins, lambda: self.wall_s)
        rollouts = OpenRollouts(ledger or Path("no-ledger.jsonl"))
        self.service = OperatorService(self.state, self.queue, self.pace, self.alarms, pins, policy, None, rollouts)

    @contextlib.contextmanager
    def applying(self):
        """Apply commands in another thread."""
        ended = threading.Event()

        def apply():
            while not ended.is_set():
                self.queue.apply(self.loop)
                self.queue.wait(0.01)

        with ThreadPoolExecutor(1) as pool:
            applied = pool.submit(apply)
            try:
                yield
            finally:
                ended.set()
        applied.result()

    @contextlib.contextmanager
    def served(self, tls=None):
        """Serve the control API at a free port; yields HOST:PORT."""
        server = ControlServer(
            ("127.0.0.1", 0), ChangingTls(tls) if tls is not None else None, operator_token.kept().value
        )
        server.start(self.service)
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            self.state.close()
            server.stop()

    @contextlib.contextmanager
    def client(self):
        with self.applying(), self.served() as address, ControlClient(address) as client:
            yield client
