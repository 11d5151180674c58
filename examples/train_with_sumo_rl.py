"""Train two signals with sumo-rl's own environment and agents, while the controller runs the served policies of the
others.

    python train_with_sumo_rl.py [--episodes 2] [--seconds 1800]

One SUMO has two clients: sumo-rl controls its targets A0 and A1, and `greenserve control`,
started beside it in every episode, controls the other TLs. sumo-rl needs no change for the
controller; only the start of SUMO differs, in `SharedSimulation`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pipeline
import sumo
import sumolib
import traci

os.environ.setdefault("SUMO_HOME", sumo.SUMO_HOME)  # sumo-rl reads it when it is imported
from sumo_rl import SumoEnvironment
from sumo_rl.agents import QLAgent

from city.arguments import Parser
from controller.sumo.programs import sumo_program
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from simulation.trips import read_trips

TARGETS = ("A0", "A1")
"""Signals that sumo-rl trains: SA101 and SA102."""
INFER_TLS = "SA103,SA104,SA105,SA106,SA107,SA108"
NET, ROUTES, PROGRAMS = (pipeline.GRID / name for name in ("grid.net.xml", "demand.rou.xml", "fixed_time.add.xml"))
STOP_TIMEOUT_S = 60.0


class SharedSimulation(SumoEnvironment):
    """sumo-rl's environment in a SUMO with the controller as its second client."""

    def __init__(self, server: str, folder: Path, seconds: int) -> None:
        """`server`: HOST:PORT of the model server. `folder`: of logs and trips."""
        self._server, self._folder = server, folder
        self._processes: list[subprocess.Popen] = []
        super().__init__(
            str(NET),
            str(ROUTES),
            num_seconds=seconds,
            yellow_time=3,
            # a reward function for each target; sumo-rl does not control the other signals
            reward_fn=dict.fromkeys(TARGETS, "diff-waiting-time"),
        )
        # sumo-rl fills these with every signal of the network
        self.ts_ids = list(TARGETS)
        self.observations, self.rewards = dict.fromkeys(TARGETS), dict.fromkeys(TARGETS)

    def _start_simulation(self) -> None:
        port = sumolib.miscutils.getFreeSocketPort()
        command = [
            sumo_program(),
            "-n",
            NET,
            "-r",
            ROUTES,
            "-a",
            PROGRAMS,
            "--seed",
            self.episode,
            "--time-to-teleport",
            "-1",
        ]
        command += ["--tripinfo-output", self.tripinfo, *TRIPINFO_OPTIONS, "--no-step-log", "--no-warnings"]
        command += ["--remote-port", port, "--num-clients", "2"]
        control = [
            sys.executable,
            "-m",
            "controller",
            "--city",
            pipeline.CITY,
            "--server",
            self._server,
            "--infer-tl",
            INFER_TLS,
        ]
        control += ["--sumo", f"127.0.0.1:{port}", "--order", "2", "--summary", self.summary]
        with self.log.open("w") as log:
            for program in (command, control):
                arguments = [str(argument) for argument in program]
                self._processes.append(subprocess.Popen(arguments, stdout=log, stderr=log, cwd=self._folder))
        threading.Thread(target=end_if_failed, args=tuple(self._processes), daemon=True).start()
        # with `proc`, traci gives up as soon as SUMO has ended
        self.sumo = traci.connect(port, numRetries=100, label=self.label, proc=self._processes[0])
        # sumo-rl acts first in every step; SUMO begins when both clients have set their order
        self.sumo.setOrder(1)

    @property
    def log(self) -> Path:
        return self._folder / f"episode_{self.episode}.log"

    @property
    def tripinfo(self) -> Path:
        return self._folder / f"episode_{self.episode}.tripinfo.xml"

    @property
    def summary(self) -> Path:
        return self._folder / f"episode_{self.episode}.json"

    def close(self) -> None:
        """End the episode: the controller hands its signals back, then SUMO ends."""
        if self.sumo is not None:
            traci.switch(self.label)
            # SUMO continues for the controller, so sumo-rl's own close would wait forever
            traci.close(wait=False)
            self.sumo = None
        super().close()
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._processes.clear()


def end_if_failed(simulation: subprocess.Popen, controller: subprocess.Popen) -> None:
    """End the simulation if the controller fails: SUMO waits for all of its clients."""
    if controller.wait() != 0:
        simulation.kill()


def table_row(observation: np.ndarray) -> tuple[int, ...]:
    """Round an observation to quarters, as a key of the agents' Q-tables."""
    return tuple((4 * observation).astype(int).tolist())


def train(environment: SharedSimulation, episodes: int) -> None:
    """Train sumo-rl's tabular Q-learning agents; print each episode's result."""
    agents: dict[str, QLAgent] = {}
    for episode in range(1, episodes + 1):
        states = {signal: table_row(observation) for signal, observation in environment.reset().items()}
        for signal, state in states.items():
            if signal not in agents:
                space = environment.action_spaces(signal)
                agents[signal] = QLAgent(state, environment.observation_spaces(signal), space, alpha=0.1, gamma=0.97)
        done = {"__all__": False}
        while not done["__all__"]:
            actions = {signal: agent.act() for signal, agent in agents.items()}
            observations, rewards, done, _ = environment.step(actions)
            for signal, agent in agents.items():
                if signal in observations:
                    agent.learn(table_row(observations[signal]), rewards[signal])
        environment.close()
        trips = read_trips(environment.tripinfo)
        print(f"episode {episode}: mean delay {trips.delay_s:.1f} s, {trips.finished} trips", flush=True)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2, help="episodes (default: 2)")
    parser.add_argument("--seconds", type=int, default=1800, help="simulated time of an episode (default: 1800)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/sumo_rl"), help="folder of logs and trips (default: out/sumo_rl)"
    )
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        models = Path(name) / "models"
        print(pipeline.export(models, out / "export.log"), flush=True)
        with pipeline.serving(models, out / "serving.log") as server:
            environment = SharedSimulation(server, out, args.seconds)
            try:
                train(environment, args.episodes)
            except (traci.FatalTraCIError, traci.TraCIException) as error:
                raise pipeline.StageFailed(
                    f"the simulation ended early ({error}); its log is {environment.log}"
                ) from None
            finally:
                environment.close()
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
