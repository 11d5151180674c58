"""`greenserve record repair`: write a whole file from what can be read of a damaged one."""

import argparse
import itertools
from pathlib import Path

from city import whole_files
from city.arguments import Parser
from city.errors import InputError
from controller.recording.record_writer import SUFFIX, RecordWriter
from records.record_flags import subcommand
from records.record_reader import LACKS_NO_STEPS, LOST, REPAIRED, RecordReader
from records.run_files import REPAIRED_SUFFIX


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write a whole file, which other tools open, from what can be read of one that was cut off or "
        "damaged.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of control --record; it is not changed")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"the whole file, which must not exist (default: FILE with {REPAIRED_SUFFIX})",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Repair a file. Exit code 2 if it is not a record, or the whole file exists already."""
    if args.file.is_dir():
        raise InputError(f"{args.file}: is a folder; name one of its files")
    out = args.out or args.file.with_name(args.file.name.removesuffix(SUFFIX) + REPAIRED_SUFFIX)
    with RecordReader(args.file) as reader:
        steps = sum(1 for _ in reader.steps())
    if reader.damage:
        write(args.file, out)
        print(f"{out}: {steps:,} steps")
        print(f"lost: {reader.missing}")
    else:
        print(
            f"{args.file}: is not damaged, {steps:,} steps{reader.missing and ', but '}{reader.missing}; nothing "
            "is written"
        )
    return 0


main = subcommand(parser, run)


def write(path: Path, out: Path) -> None:
    """Write what can be read of a file as a whole one. Raises InputError if that exists, or cannot be written."""
    if out.exists():
        raise InputError(f"{out}: exists already and is not overwritten; pass another --out")
    with whole_files.replacing(out) as draft:
        with RecordReader(path) as source, draft.open("xb") as target:
            steps = source.steps()
            first = next(steps, None)
            begin_ns, begin_s = (
                (source.city.begin_unix_ns, None) if first is None else (first.publish_ns, first.step.at_s)
            )
            writer = RecordWriter(target, source.city, source.attachments, begin_ns, begin_s, source.state)
            for recorded in itertools.chain([first] if first is not None else [], steps):
                if recorded.state is not None and recorded is not first:
                    writer.add_state(recorded.state, recorded.publish_ns)
                writer.add(recorded.step, recorded.tls, recorded.publish_ns)
            lacks = {} if source.may_lack_steps else {LACKS_NO_STEPS: "true"}
            writer.add_metadata(REPAIRED, {LOST: source.damage, **lacks})
            writer.finish()
        if out.exists():
            raise InputError(
                f"{out}: another program has written it meanwhile, and it is not overwritten; pass another --out"
            )
