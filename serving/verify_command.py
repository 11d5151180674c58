"""`greenserve verify`: verify the signatures of models, before a server loads them."""

import sys
from collections.abc import Iterator
from pathlib import Path

from city import model_folders, program
from city.arguments import Parser
from city.errors import InputError, path_errors_as_input_errors
from city.printable import printable
from city.signatures import Signers
from serving import signed_models
from serving.embedded.models import model_config


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Verify that models are signed, each for its TL and number, and that no file was changed, added or "
        "removed since.",
    )
    parser.add_argument(
        "models", nargs="*", type=Path, metavar="DIR", help="a version, such as models/SA101/3, or a folder of models"
    )
    parser.add_argument(
        "--model_config_file",
        type=Path,
        metavar="FILE",
        help="the versions that a server with this ModelServerConfig loads now, under the names that it gives them",
    )
    parser.add_argument(
        "--signed-by",
        type=Path,
        required=True,
        metavar="FILE",
        help="public keys (P-256) of accepted signers, or their certificates or those that issued them, as PEM",
    )
    return parser


def main(argv: list[str], prog: str) -> int:
    """Verify models, each in a line. Exit code: 0; 2 if one is refused or the input is wrong."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        if bool(args.models) == (args.model_config_file is not None):
            raise InputError("pass the models' folders, or --model_config_file FILE that lists them")
        signers = Signers.read(args.signed_by)
        refused = 0
        for tl, version in _configured(args.model_config_file) if args.model_config_file else _in_folders(args.models):
            try:
                signed_models.verify(version, tl, int(version.name), signers)
                print(printable(f"{tl}: {version} is signed by {args.signed_by}"))
            except InputError as error:
                refused = 2
                print(f"error: {error}", file=sys.stderr)
        return refused

    return program.run(run)


@path_errors_as_input_errors()
def _in_folders(folders: list[Path]) -> Iterator[tuple[str, Path]]:
    """(TL, version) of version folders, folders of a TL, and folders of models. Raises InputError if one has none."""
    for folder in map(Path.absolute, folders):
        homes = (folder, *model_folders.subfolders(folder))
        versions = [version for home in homes for version in model_folders.versions(home).values()]
        if model_folders.is_version(folder.name):
            versions = [folder]
        if not versions or not folder.is_dir():
            raise InputError(f"{folder}: holds no version of a model; name a folder such as models or models/SA101/3")
        yield from ((version.parent.name, version) for version in versions)


@path_errors_as_input_errors()
def _configured(file: Path) -> Iterator[tuple[str, Path]]:
    """(name, version) of the versions that a server loads. Raises InputError if a model has none."""
    for name, config in model_config.from_file(file).items():
        versions = model_folders.versions(config.base_path)
        aspired = sorted(config.policy.aspired(versions))
        if not aspired:
            raise InputError(f"{file}: model {name} has no version to serve in {config.base_path}; export it")
        yield from ((name, versions[number]) for number in aspired)
