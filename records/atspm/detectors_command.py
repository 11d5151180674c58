"""`greenserve detectors`: write an additional file with detectors for a city's signals."""

from collections import Counter
from pathlib import Path

from city import config, network, program
from city.arguments import Parser
from city.errors import InputError
from controller.recording.detectors import ADVANCE, FUNCTIONS
from records.atspm import detectors


def main(argv: list[str], prog: str = "greenserve detectors") -> int:
    """Write the file and print what is in it. Exit code: 0; 2 if the input is wrong."""

    def write() -> int:
        args = parser(prog).parse_args(argv)
        city = config.load(args.city)
        street = network.of_city(city)
        placed = detectors.place(street)
        if not placed:
            raise InputError(
                f"{street.net_file}: has no signal with a vehicle lane; name another network in {city.path}"
            )
        if not args.out.parent.is_dir():
            raise InputError(f"{args.out}: there is no folder {args.out.parent}; create it, or pass another --out")
        detectors.write(args.out, placed)
        count = Counter(detector.function for detector in placed)
        lanes = len({detector.stop_lane for detector in placed})
        far = len({detector.stop_lane for detector in placed if detector.function == ADVANCE})
        text = ", ".join(f"{count[function]} {function}" for function in FUNCTIONS)
        print(f"wrote {args.out}: {text}, on {lanes} lanes of {len({detector.signal for detector in placed})} signals")
        if far < lanes:
            print(f"{lanes - far} lanes are too short for an advance detector")
        print(f"add it to additional-files in {city.network.sumocfg or 'your .sumocfg'}")
        return 0

    return program.run(write)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write an additional file with advance and stop-bar detectors for a city's signals.",
    )
    parser.add_city()
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        default=Path("detectors.add.xml"),
        help="file to write (default: ./detectors.add.xml)",
    )
    return parser
