"""The policy for any junction that is part of the package. README.md beside this file is its model card."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""A folder of checkpoints with one policy."""


def policy() -> Path:
    """The file of the policy."""
    (path,) = FOLDER.glob("*.policy")
    return path
