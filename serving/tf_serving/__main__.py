"""`python -m serving.tf_serving`: write TensorFlow Serving's models.config for a folder of models.

    python -m serving.tf_serving --models-dir models --mounted-at /models

The file is written into the folder, which the container mounts read-only.
TensorFlow Serving reads it again every --model_config_file_poll_wait_seconds, so
run this again after the export of another TL.
"""

import sys
from pathlib import Path

from city.arguments import Parser
from city.errors import InputError, path_errors_as_input_errors
from serving.embedded.models.version_files import scan

NAME = "models.config"


def config_text(models: list[str], mounted_at: str) -> str:
    """A ModelServerConfig as text proto: the newest version of every model."""
    entries = "".join(
        f'  config {{\n    name: "{name}"\n    base_path: "{mounted_at}/{name}"\n    model_platform: "tensorflow"\n  }}\n'
        for name in models
    )
    return f"model_config_list {{\n{entries}}}\n"


@path_errors_as_input_errors()
def write(models_dir: Path, mounted_at: str) -> Path:
    """Write models.config by rename and return its path. Raises InputError if there are no models."""
    models = sorted(scan(models_dir))
    if not models:
        raise InputError(f"{models_dir}: holds no models; export some first (greenserve export --tl all)")
    path = models_dir / NAME
    draft = path.with_name(f".{NAME}.draft")
    try:
        draft.write_text(config_text(models, mounted_at.rstrip("/")), encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; make the folder writable") from None
    return path


def main(argv: list[str] | None = None, prog: str = "python -m serving.tf_serving") -> int:
    parser = Parser(prog=prog, description="Write TensorFlow Serving's models.config.")
    parser.add_argument(
        "--models-dir",
        "--models_dir",
        type=Path,
        default=Path("models"),
        metavar="DIR",
        help="folder of models (default: models)",
    )
    parser.add_argument(
        "--mounted-at", "--mounted_at", default="/models", metavar="PATH",
        help="path of the folder inside the container (default: /models)",
    )  # fmt: skip
    try:
        args = parser.parse_args(argv)
        print(write(args.models_dir, args.mounted_at))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
