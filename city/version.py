"""The version of the installed package, for programs, manifests and metrics."""

from importlib import metadata

VERSION = metadata.version("greenserve")
