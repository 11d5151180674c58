"""Streets by seed: network and signal programs of SUMO, in a folder of their own.

The kind is drawn first (`street_kinds`), then junctions and roads (`shapes`) and their lanes (`plain_network`).
netconvert builds the network, and `signal_programs` the programs that are not netconvert's own.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from city import network
from city.errors import InputError, ProgramFailed, first_line
from city.network import StreetNetwork
from controller.sumo.programs import sumo_program
from pretraining.synthetic import junction_movements, plain_network, shapes, signal_programs, street_kinds
from pretraining.synthetic.shapes import RoadLayout
from pretraining.synthetic.street_kinds import LAYOUTS, Shape, StreetKind
from signals.contract import check_controllable
from signals.policy_signals import PolicySignal, distinct_greens, running_program
from signals.safety.conflicts import check_phases

NETWORK, PROGRAMS, CONFIGURATION, DEMAND = "street.net.xml", "programs.add.xml", "street.sumocfg", "demand.rou.xml"
END_S = 1200
MAX_DRAWS = 10
"""Draws of a street, if SUMO's tools or the safety rules refuse the first ones."""
TOOL_TIMEOUT_S = 60.0
OTHER_LEFT_GREEN_S = 8
"""Protected left green of the programs that netconvert builds beside the network's own."""
RANDOM_OPTIONS = (
    "--rand --rand.bidi-probability 1 --rand.connectivity 0.95 --rand.min-distance 80 --rand.max-distance 300"
)
MIN_ITERATIONS, MAX_ITERATIONS = 14, 34
"""Iterations of netgenerate: the number of roads of a random network, nearly."""
CONFIGURATION_XML = f"""\
<configuration>
    <input>
        <net-file value="{NETWORK}"/>
        <route-files value="{DEMAND}"/>
{{additional}}    </input>
    <time>
        <begin value="0"/>
        <end value="{END_S}"/>
    </time>
</configuration>
"""
_HEADER = re.compile(rb"<!--.*?-->\s*", re.DOTALL)


class NotUsable(Exception):
    """A drawn street cannot be built, or has no signal to control; the message is the reason."""


def generate(folder: Path, seed: int) -> Path:
    """Write the street of a seed into `folder/street_SEED`, and return that folder; an existing one is returned as it
    is.

    The same seed gives the same network and programs with the same version of SUMO. The demand is written later, as
    DEMAND in the same folder.

    Raises:
        InputError: the folder cannot be written, or SUMO is missing.
        ProgramFailed: no draw of the seed gives a street.
    """
    target = folder / f"street_{seed}"
    if target.is_dir():
        return target
    draft = folder / f".{target.name}.{os.getpid()}.draft"
    # of a killed run of the same process id
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        _write(draft, seed)
        draft.rename(target)
    except OSError as error:
        # another process may have written the same street meanwhile
        if not target.is_dir():
            raise InputError(f"{target}: cannot be written: {error.strerror or error}; name another folder") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _write(folder: Path, seed: int) -> None:
    """Write a street into an empty folder. Raises ProgramFailed, and InputError if SUMO is missing."""
    reason = ""
    for draw in range(MAX_DRAWS):
        rng = np.random.default_rng([seed, draw])
        attempt = folder / str(draw)
        attempt.mkdir()
        try:
            files = _build(attempt, street_kinds.draw(rng), rng)
        except NotUsable as error:
            reason = str(error)
            continue
        for path in files:
            path.rename(folder / path.name)
        break
    else:
        raise ProgramFailed(
            f"street of seed {seed}: none of {MAX_DRAWS} draws can be used ({reason}); take another seed"
        )
    for attempt in folder.iterdir():
        if attempt.is_dir():
            shutil.rmtree(attempt)


def _build(folder: Path, kind: StreetKind, rng: np.random.Generator) -> list[Path]:
    layout = _random_layout(folder, kind, rng) if kind.shape is Shape.RANDOM else shapes.draw(kind, rng)
    if not layout.signals:
        raise NotUsable("it has no signal")
    options = [*plain_network.write(folder, layout, kind, rng), *_options(kind, rng)]
    net_file = _netconvert(options, folder / NETWORK, kind.layout, kind.left_green_s)
    files = [net_file, folder / CONFIGURATION]
    street = _read(net_file)
    if kind.own_program_share:
        other = next(name for name in LAYOUTS if name != kind.layout)
        other_file = _netconvert(options, folder / "other.net.xml", other, OTHER_LEFT_GREEN_S)
        programs = _programs_xml(net_file, street, _read(other_file), kind, rng)
        if programs:
            (folder / PROGRAMS).write_text(f"<additional>\n{programs}</additional>\n")
            files.append(folder / PROGRAMS)
    additional = f'        <additional-files value="{PROGRAMS}"/>\n' if folder / PROGRAMS in files else ""
    (folder / CONFIGURATION).write_text(CONFIGURATION_XML.format(additional=additional))
    _check(network.of_sumocfg(folder / CONFIGURATION))
    return files


def _random_layout(folder: Path, kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """A random network of netgenerate. Raises NotUsable."""
    prefix = folder / "random"
    iterations = int(rng.integers(MIN_ITERATIONS, MAX_ITERATIONS + 1))
    seed = int(rng.integers(1 << 30))
    _run(
        "netgenerate", *RANDOM_OPTIONS.split(), "--rand.iterations", str(iterations), "--seed", str(seed),
        "--plain-output-prefix", str(prefix), "--output-file", str(folder / "random.net.xml"),
    )  # fmt: skip
    return shapes.finish(shapes.read_plain(folder / "random.nod.xml", folder / "random.edg.xml"), kind, rng)


def _options(kind: StreetKind, rng: np.random.Generator) -> list[str]:
    """netconvert's options of a street, beside its plain files, and except those of the signals' programs."""
    options = [
        "--no-turnarounds", "--remove-edges.isolated", "--keep-edges.components", "1", "--tls.default-type", "static",
        "--tls.cycle.time", str(kind.cycle_s), "--seed", str(int(rng.integers(1 << 30))),
    ]  # fmt: skip
    if kind.own_program_share:
        # otherwise two links that no phase of the network's own program shows together may have to yield to each other
        options.append("--tls.ignore-internal-junction-jam")
    if kind.has_crossings:
        options += ["--sidewalks.guess", "--sidewalks.guess.max-speed", "30", "--crossings.guess"]
    return options


def _netconvert(options: list[str], net_file: Path, layout: str, left_green_s: int) -> Path:
    _run(
        "netconvert", *options, "--tls.layout", layout, "--tls.left-green.time", str(left_green_s), "--output-file",
        str(net_file)
    )  # fmt: skip
    # the header has the time, and paths of this machine
    net_file.write_bytes(_HEADER.sub(b"", net_file.read_bytes(), count=1))
    return net_file


def _run(tool: str, *arguments: str) -> None:
    """Run a tool of SUMO. Raises NotUsable if it fails, and InputError if it is missing."""
    try:
        result = subprocess.run([sumo_program(tool), *arguments], capture_output=True, timeout=TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotUsable(f"{tool} takes more than {TOOL_TIMEOUT_S:g} s") from None
    if result.returncode:
        errors = [line for line in result.stderr.decode(errors="replace").splitlines() if line.startswith("Error")]
        raise NotUsable(f"{tool} failed: {errors[0] if errors else f'exit code {result.returncode}'}")


def _read(net_file: Path) -> StreetNetwork:
    """Read a network of netconvert. Raises NotUsable."""
    try:
        return network.read(net_file)
    except InputError as error:
        raise NotUsable(first_line(error)) from None


def _programs_xml(
    net_file: Path, street: StreetNetwork, other: StreetNetwork, kind: StreetKind, rng: np.random.Generator
) -> str:
    """The programs (`tlLogic`) of the signals that do not run the network's own. `other`: with netconvert's other
    layout."""
    movements = junction_movements.read(net_file)
    texts = []
    for name, signal in street.signals.items():
        if rng.random() >= kind.own_program_share:
            continue
        if name not in other.signals or other.signals[name].links != signal.links:
            raise NotUsable(f"the layouts give signal {name} different links")
        junction = signal_programs.SignalSite.of_layouts(signal, other.signals[name], movements[name])
        greens = signal_programs.draw_greens(street_kinds.choice(rng, signal_programs.KINDS), junction, rng)
        if len(greens) > 1:
            texts.append(signal_programs.program_xml(signal, greens, rng))
    return "".join(texts)


def _check(street: StreetNetwork) -> None:
    """Raise NotUsable unless the safety rules permit every state of every program, and a policy has something to
    choose."""
    controllable = 0
    try:
        for signal in street.signals.values():
            for program in signal.programs:
                check_phases(signal.id, signal, program.id, [phase.state for phase in program.phases])
            program = running_program(signal)
            greens = distinct_greens(signal, program)
            if len(greens) > 1:
                check_controllable(signal.id, PolicySignal(signal, program, tuple(greens)))
                controllable += 1
    except InputError as error:
        raise NotUsable(first_line(error)) from None
    if not controllable:
        raise NotUsable("no signal has two greens")
