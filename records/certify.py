"""`greenserve record certify`: digests of a run's files, its replay's verdict, and who commanded it, for an auditor."""

import argparse
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Template

from city import signatures, whole_files
from city.arguments import Parser
from city.errors import InputError, errors_about
from city.sumo_files import time_text
from city.version import VERSION
from controller.recording.sentences import action_sentence, command_sentence
from records.info import summarise
from records.record_flags import add_record, open_record, subcommand
from records.recorded_run import RecordedRun
from records.replay import Replay
from records.replay_command import DIFFERENT
from records.run_files import RunReader, chained

FORMAT = "greenserve record certificate 1"
TEMPLATE = Template((Path(__file__).parent / "certify.html").read_text(), autoescape=True, trim_blocks=True)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write what an auditor keeps of a run, as JSON and as a page: digests of its files as a chain, the "
        "verdict of its replay, and the operators' commands. Or compare a record with such a certificate.",
    )
    add_record(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the certificate; the page is beside it, as .html (default: ./certificate.json)",
    )
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help=f"sign it with this private key (P-256, PEM), as FILE{signatures.SUFFIX}",
    )
    parser.add_argument(
        "--check", type=Path, metavar="CERTIFICATE", help="compare the record with this certificate; nothing is written"
    )
    parser.add_argument(
        "--public-key", type=Path, metavar="KEY", help="with --check: the key (PEM) that the certificate is signed with"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Certify a record, or check a certificate. Exit code: 0; 3 if the replay or the record differs; 2 if the input is
    wrong."""
    if args.check is not None:
        if args.out or args.sign:
            raise InputError("--check writes nothing; leave --out and --sign out")
        return _check(args)
    if args.public_key is not None:
        raise InputError("--public-key is for --check; pass --check CERTIFICATE too")
    out = args.out or Path("certificate.json")
    whole_files.check_writable("--out", out)
    content = json.dumps(certificate(open_record(args), RecordedRun([args.record], args.run)), indent=1) + "\n"
    # before anything is written: a wrong key leaves nothing behind
    signature = signatures.sign(content.encode(), args.sign) if args.sign else None
    whole_files.write(out, content)
    document = json.loads(content)
    page = TEMPLATE.render(document=document, verdict=_verdict(document), signature=signature, time_text=time_text)
    whole_files.write(out.with_suffix(".html"), page)
    if signature is not None:
        whole_files.write(_signature_of(out), signature + "\n")
    print(f"{out}: {document['digest']}; {_verdict(document)}")
    return 0 if document["replay"]["same"] else DIFFERENT


main = subcommand(parser, run)


def certificate(reader: RunReader, run: RecordedRun) -> dict[str, Any]:
    """The certificate of a run. Raises InputError."""
    files = chained(reader.files)
    summary = summarise(reader)
    replay = Replay(run)
    replay.run()
    first = replay.differences.first
    return {
        "format": FORMAT,
        "made_by": f"greenserve {VERSION}",
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "digest": files[-1]["chain"],
        "files": files,
        "run": {name: value for name, value in summary.items() if name != "files"},
        "replay": {
            "same": first is None,
            "steps": replay.replayed_steps,
            "to_s": replay.replayed_to_s,
            "first_difference": None if first is None else str(first),
            "holes": replay.holes,
        },
        "commands": list(_commands(reader)),
    }


def _commands(reader: RunReader) -> Iterator[dict[str, Any]]:
    """Operators' commands with their authors, in order."""
    for recorded in reader.steps():
        step = recorded.step
        for command in step.commands:
            yield {"at_s": step.at_s, "author": command.author, "text": command_sentence(command, step.at_s)}
        for action in step.actions:
            yield {"at_s": step.at_s, "author": action.author, "text": action_sentence(action, step.at_s)}


def _verdict(document: dict[str, Any]) -> str:
    """The verdict of the replay in a sentence."""
    replay, missing = document["replay"], document["run"]["missing"]
    span = f"{replay['steps']:,} steps, up to {time_text(replay['to_s'])}, were decided again"
    same = "bit for bit the same" if replay["same"] else f"not the same: {replay['first_difference']}"
    return f"{span}: {same}" + (f"; missing: {'; '.join(missing)}" if missing else "")


def _signature_of(path: Path) -> Path:
    return path.with_name(path.name + signatures.SUFFIX)


def _check(args: argparse.Namespace) -> int:
    """Compare a record with a certificate, and the certificate with its signature. Raises InputError."""
    path: Path = args.check
    try:
        content = path.read_bytes()
        document = json.loads(content)
        files = [(file["name"], file["sha256"], file["chain"]) for file in document["files"]]
        if document["format"] != FORMAT:
            raise ValueError
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; name a file of record certify") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is not a certificate of this version; name a file of record certify") from None
    if args.public_key is not None:
        _check_signature(path, content, args.public_key)
    reader = open_record(args)
    for text in reader.missing:
        print(f"missing: {text}")
    found = [(file["name"], file["sha256"], file["chain"]) for file in chained(reader.files)]
    for name, digest, chain in found:
        if (name, digest, chain) not in files:
            print(f"{name}: differs from the certificate, or stands at another place in the run")
            return DIFFERENT
    if len(found) != len(files):
        print(f"{len(files) - len(found)} files of the certificate are missing in the record")
        return DIFFERENT
    signed = ", which its key has signed" if args.public_key is not None else "; its signature was not checked"
    print(f"{document['digest']}: the record is that of the certificate{signed}")
    return 0


def _check_signature(path: Path, content: bytes, public_key: Path) -> None:
    """Raises InputError unless the certificate is signed by the key."""
    try:
        signature = base64.b64decode(_signature_of(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise InputError(f"{_signature_of(path)}: cannot be read; ask for the signature beside {path.name}") from None
    signers = signatures.Signers.read(public_key)
    with errors_about(path):
        signers.check(content, signature)
