"""The `.meta` file that a TF1 Saver writes beside a checkpoint."""

from pathlib import Path


def meta_graph_path(prefix: Path) -> Path:
    """Path of the MetaGraph of a checkpoint's prefix."""
    return prefix.with_name(prefix.name + ".meta")
