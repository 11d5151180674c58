"""`greenserve record repair`: write a whole file from what can be read of a damaged one."""

import itertools
import os
from pathlib import Path
from typing import Any

from mcap.records import Attachment, Channel, Header, Message, Metadata, Schema
from mcap.writer import Writer

from city import program, whole_files
from city.arguments import Parser
from city.errors import InputError
from controller.recording.record_writer import CITY, PROFILE, STATE, SUFFIX
from records.mcap_stream import Losses, McapStream
from records.record_reader import LOST, REPAIRED, RecordReader
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


def main(argv: list[str], prog: str) -> int:
    """Repair a file. Exit code 2 if it is not a record, or the whole file exists already."""

    def repair() -> int:
        args = parser(prog).parse_args(argv)
        if args.file.is_dir():
            raise InputError(f"{args.file}: is a folder; name one of its files")
        out = args.out or args.file.with_name(args.file.name.removesuffix(SUFFIX) + REPAIRED_SUFFIX)
        with RecordReader(args.file) as reader:
            steps = sum(1 for _ in reader.steps())
        if reader.is_damaged:
            write(args.file, out)
            print(f"{out}: {steps:,} steps")
            print(f"lost: {reader.missing}")
        else:
            print(
                f"{args.file}: is not damaged, {steps:,} steps{reader.missing and ', but '}{reader.missing}; nothing "
                "is written"
            )
        return 0

    return program.run(repair)


def write(path: Path, out: Path) -> None:
    """Copy what can be read of a file into a whole one. Raises InputError if that exists, or cannot be written."""
    if out.exists():
        raise InputError(f"{out}: exists already and is not overwritten; pass another --out")
    with whole_files.replacing(out) as draft:
        with path.open("rb") as source, draft.open("xb") as target:
            losses = Losses()
            writer: Any = Writer(target)  # its methods have no types
            _copy(McapStream(source, losses), writer)
            writer.add_metadata(REPAIRED, {LOST: str(losses)})
            writer.finish()
            target.flush()
            os.fsync(target.fileno())
        if out.exists():
            raise InputError(
                f"{out}: another program has written it meanwhile, and it is not overwritten; pass another --out"
            )
    whole_files.sync_folder(out.parent)


def _copy(source: McapStream, writer: Any) -> None:
    """Copy records as they are, with new numbers for schemas and channels."""
    schemas: dict[int, int] = {}
    channels: dict[int, int] = {}
    # the file's head has copies, of which one is enough
    of_head: set[int] = set()
    copied: set[int] = set()
    records = source.records()
    first = next(records)
    header = first if isinstance(first, Header) else Header(PROFILE, "")
    writer.start(header.profile, header.library)
    for item in itertools.chain([first], records):
        if isinstance(item, Attachment):
            writer.add_attachment(item.create_time, item.log_time, item.name, item.media_type, item.data)
        elif isinstance(item, Metadata):
            writer.add_metadata(item.name, item.metadata)
        elif isinstance(item, Schema) and item.id not in schemas:
            schemas[item.id] = writer.register_schema(item.name, item.encoding, item.data)
        elif isinstance(item, Channel) and item.id not in channels and item.schema_id in schemas:
            schema = schemas[item.schema_id]
            channels[item.id] = writer.register_channel(item.topic, item.message_encoding, schema, item.metadata)
            if item.topic in (CITY, STATE):
                of_head.add(item.id)
        elif isinstance(item, Message) and item.channel_id in channels:
            if item.channel_id in of_head and item.channel_id in copied:
                continue
            copied.add(item.channel_id)
            channel = channels[item.channel_id]
            writer.add_message(channel, item.log_time, item.data, item.publish_time, item.sequence)
