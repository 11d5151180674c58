"""Sources: a reader for every kind of checkpoint that trainers write.

A source is one file in this folder with a SOURCE object, a `source.Source`. The
exporter finds the sources here; nothing else lists them.
"""

import functools
import importlib
import pkgutil

from export.checkpoints.source import Source


def sources() -> list[Source]:
    """The sources in this folder."""
    return _sources(tuple(module.name for module in pkgutil.iter_modules(__path__)))


@functools.cache
def _sources(modules: tuple[str, ...]) -> list[Source]:
    loaded = (importlib.import_module(f"{__name__}.{module}") for module in modules)
    return [module.SOURCE for module in loaded if hasattr(module, "SOURCE")]


def source_of(format_name: str) -> Source:
    """The source that reads a format."""
    return next(source for source in sources() if source.format == format_name)
