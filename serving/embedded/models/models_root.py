"""The folder in which the models of reload requests must lie: any client that reaches the port chooses their base
paths."""

import os
from collections.abc import Mapping
from pathlib import Path

from grpc import StatusCode

from serving.embedded.models.model_config import ModelConfig
from serving.embedded.status import StatusError


def common_folder(configs: Mapping[str, ModelConfig]) -> Path | None:
    """The folder that holds the folders of all these models, with links resolved; None without models."""
    parents = [os.path.realpath(config.base_path.parent) for config in configs.values()]
    return Path(os.path.commonpath(parents)) if parents else None


def check(configs: Mapping[str, ModelConfig], root: Path | None) -> None:
    """Raise StatusError (INVALID_ARGUMENT) unless every model's folder lies in the root, with links resolved.

    `root`: None permits no folder.
    """
    for name, config in configs.items():
        try:
            is_inside = root is not None and Path(os.path.realpath(config.base_path)).is_relative_to(
                os.path.realpath(root)
            )
        except ValueError as error:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"model {name}: {str(config.base_path)!r} cannot be read: {error}"
            ) from None
        if not is_inside:
            where = (
                f"outside of {root}"
                if root is not None
                else "in no permitted folder: the server started without models"
            )
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"model {name}: {str(config.base_path)!r} lies {where}; move the model, or start the server with "
                "--models_root",
            )
