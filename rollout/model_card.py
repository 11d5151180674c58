"""`greenserve card`: the card of one model, as Markdown or HTML, with the sections of Hugging Face's model cards."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from city import model_folders, program, whole_files
from city.arguments import Parser
from city.errors import InputError
from city.ledger import drives_by_tl
from city.ledger_file import LedgerFile
from protos import policy_pb2 as pb
from rollout import model_files
from serving import signed_models
from serving.contract import CATEGORICAL, from_saved_model, lanes

TEMPLATES = {".md": "model_card.md", ".html": "model_card.html"}
"""By the suffix of the card's file."""
LIMITS = (
    "It was trained and judged in simulation; a street has drivers, detectors and demands that no simulation had.",
    "The controller's safety rules stand between its choices and the signals. Without them it is not safe to use.",
    "The parity check compares outputs with those of the checkpoint; it does not say that the policy is good.",
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")
"""Characters that Markdown would not show as they are."""


@dataclass(frozen=True)
class Section:
    """A section of a card: sentences, then a table."""

    title: str
    lines: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    header: tuple[str, ...] = ("", "")


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write the card of a model: what it is, for which TL, made of what, how it was judged, and when it "
        "drove.",
    )
    parser.add_argument(
        "version", type=Path, metavar="MODEL/VERSION", help="a version's folder, such as models/SA101/3"
    )
    parser.add_argument("--evaluation", type=Path, metavar="FILE", help="results.json of greenserve evaluate --out")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="the ledger of greenserve rollout")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CARD.md or CARD.html (default: Markdown, to stdout)")
    return parser


def main(argv: list[str], prog: str) -> int:
    """Write a card. Exit code: 0; 2 if a file is wrong, or about another model."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        if args.out is not None:
            if args.out.suffix not in TEMPLATES:
                raise InputError(f"--out {args.out}: must end in .md or .html")
            whole_files.check_writable("--out", args.out)
        text = card(args.version.absolute(), args.evaluation, args.ledger, args.out.suffix if args.out else ".md")
        if args.out is None:
            sys.stdout.write(text)
        else:
            whole_files.write(args.out, text)
        return 0

    return program.run(run)


def card(version: Path, evaluation: Path | None = None, ledger: Path | None = None, suffix: str = ".md") -> str:
    """The card of a version, in the format of a suffix. Raises InputError."""
    if not model_folders.is_version(version.name):
        raise InputError(f"{version}: is not a version's folder; pass one such as models/SA101/3")
    tl, number = version.parent.name, int(version.name)
    sha256 = model_files.of_version(version.parents[1], tl, number).sha256
    contract = from_saved_model(version)
    if contract.members:
        raise InputError(f"{version}: is a fleet; make the cards of its TLs' models")
    try:
        manifest = json.loads((version / "assets.extra" / "export.json").read_text(encoding="utf-8"))
        sections = [
            _details(contract, manifest, sha256, (version / signed_models.FILE_NAME).is_file()),
            _uses(contract),
            _limits(contract, manifest, evaluation),
            Section(
                "How to Get Started with the Model",
                ("greenserve serve --models-dir models", f"greenserve predict {tl} --observation zeros"),
            ),
            _training(contract, manifest),
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{version}: its export.json cannot be read ({error}); {model_files.REMEDY}") from None
    sections += [
        _evaluation(evaluation, tl, number),
        _street(ledger, tl, number, sha256),
        _specifications(contract),
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=suffix == ".html",
        finalize=_as_markdown if suffix == ".md" else None,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template(TEMPLATES[suffix])
    return template.render(title=f"Signal policy {tl}/{number}", sections=sections)


def _as_markdown(value: object) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(str(value).split()))


def _details(contract: pb.PolicyContract, manifest: Mapping[str, Any], sha256: str, is_signed: bool) -> Section:
    origin, policy = contract.origin, contract.observation
    rows = (
        ("TL", contract.tl),
        ("Model number", str(origin.model_number)),
        ("Signals", ", ".join(contract.signal_ids) or "unknown"),
        ("Policy", f"{policy.dialect} {policy.state} {manifest['actor']['architecture']}, {contract.action.kind}"),
        ("Exported", f"{origin.exported_at} by greenserve {origin.exporter_version}"),
        ("SHA-256 of all files", sha256),
        ("Signature", "model.sig; greenserve verify says whose" if is_signed else "none"),
    )
    return Section("Model Details", rows=rows)


def _uses(contract: pb.PolicyContract) -> Section:
    interval = contract.timing
    every = f"{interval.control_cycle} cycles" if interval.control_cycle else f"{interval.decision_interval_s:g} s"
    return Section(
        "Uses",
        (
            f"Direct use: it decides every {every} for the signals of {contract.tl}, in greenserve's controller.",
            "Out of scope: other signals, another street network or signal program, and any use without the "
            "controller's safety rules.",
        ),
    )


def _limits(contract: pb.PolicyContract, manifest: Mapping[str, Any], evaluation: Path | None) -> Section:
    lines = [*LIMITS]
    if evaluation is None:
        lines.append("This card has no evaluation.")
    if contract.missing:
        lines.append(f"Its contract is incomplete ({', '.join(contract.missing)}): the controller refuses it.")
    if only_action := manifest["parity"].get("only_action"):
        lines.append(f"In the parity check it chose one action alone: {only_action}.")
    return Section("Bias, Risks, and Limitations", tuple(lines))


def _training(contract: pb.PolicyContract, manifest: Mapping[str, Any]) -> Section:
    source, parity = manifest["source"], manifest["parity"]
    lines = (
        f"Its weights are those of checkpoint {contract.origin.file_name} ({contract.origin.source_format}).",
        f"Parity check: {parity['observations']} observations, largest difference "
        f"{float(parity['largest_absolute_difference']):.1e} of {float(parity['largest_permitted_difference']):.1e} "
        f"permitted, against {parity['reference']}.",
    )
    rows = tuple((file["name"], str(file["bytes"]), file["sha256"]) for file in source["files"])
    return Section("Training Details", lines, rows, ("File", "Bytes", "SHA-256"))


def _evaluation(file: Path | None, tl: str, number: int) -> Section:
    """The evaluation in which the model is the candidate. Raises InputError."""
    title = "Evaluation"
    if file is None:
        return Section(title, ("None was given.",))
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        candidate, conditions = results["candidate"], results["conditions"]
        model = Path(conditions["models"].get(candidate, {}).get(tl, ""))
        if (model.parent.name, model.name) != (tl, str(number)):
            raise InputError(
                f"{file}: its candidate {candidate} is not {tl}/{number}; pass the results of greenserve evaluate "
                f"--arms served:{number},..."
            )
        lines = (
            f"Candidate {candidate}: {tl}/{number} with the models of {len(conditions['tls']) - 1} other TLs, in "
            f"{conditions['seeds']} paired simulations with SUMO {conditions['sumo']}.",
            f"{results['confidence']:.0%} intervals. {results['intervals']}",
            "Delay in s a vehicle; a difference below 0 is in favour of this model.",
        )
        rows = tuple(
            (arm, *_means(values["delay_s"]), *_means(results["delay_by_tl"][arm][tl]))
            for arm, values in results["arms"].items()
        )
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; pass results.json of evaluate --out") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{file}: is not results.json of this version; pass that of greenserve evaluate") from None
    header = ("Arm", "Network", "This model - arm", f"Before {tl}", "This model - arm")
    return Section(title, lines, rows, header)


def _means(value: Mapping[str, Any]) -> Iterator[str]:
    """An arm's mean and the candidate's difference to it, with their intervals."""
    for each, sign in ((value, ""), (value["difference"], "+")):
        bounds = "no interval"
        if each["low"] is not None:
            bounds = f"{each['low']:{sign}.1f} to {each['high']:{sign}.1f}"
        yield f"{each['mean']:{sign}.1f} ({bounds})"


def _street(file: Path | None, tl: str, number: int, sha256: str) -> Section:
    """The times in which the model drove the TL. Raises InputError."""
    title = "On the Street"
    if file is None:
        return Section(title, ("No ledger was given.",))
    ledger = LedgerFile(file)
    if not ledger.lines:
        raise InputError(f"{file}: there is no ledger; greenserve rollout begins one")
    known = ledger.state.digests.get((tl, number), sha256)
    if known != sha256:
        raise InputError(f"{file}: {tl}/{number} has other files in the ledger ({known[:12]}, here {sha256[:12]})")
    drives = drives_by_tl(ledger.lines).get(tl, [])
    ends = [*(drive.begin for drive in drives[1:]), "now"]
    rows = tuple(
        (drive.begin, end, drive.line.author, drive.line.rollout or "adopted")
        for drive, end in zip(drives, ends, strict=False)
        if drive.model.number == number
    )
    return Section(
        title, () if rows else ("It has not driven the TL.",), rows, ("From", "To", "Released by", "Rollout")
    )


def _specifications(contract: pb.PolicyContract) -> Section:
    kinds = Counter(feature.kind for feature in contract.observation.features)
    features = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    unit = "choices" if contract.action.kind == CATEGORICAL else "numbers in [-1, 1]"
    times = contract.timing
    rows = (
        ("Input", f"observation, float32, {contract.observation.size} numbers: {features or 'unknown'}"),
        ("Lanes", ", ".join(lanes(contract)) or "unknown"),
        ("Output", f"action, {contract.action.kind}, {contract.action.size} {unit}"),
        ("Times", f"yellow {times.yellow_s:g} s, all-red {times.all_red_s:g} s, min green {times.min_green_s:g} s"),
    )
    return Section("Technical Specifications", rows=rows)
