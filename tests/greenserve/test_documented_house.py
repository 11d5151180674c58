"""docs/explanation/house.md: its packages, layers and files are those of the project."""

import re
import tomllib

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "explanation" / "house.md").read_text()
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.M))
"""What each package holds."""


def test_layers_of_the_page_are_those_of_the_import_rules():
    block = re.search(r"^```text\n(.*?)^```", PAGE, re.M | re.S)[1]
    assert [re.split(r"  +", line)[0] for line in block.splitlines()] == LAYERS


def test_no_diagram_needs_a_script_from_the_network():
    """The theme would load Mermaid from a CDN, so that a reader without internet saw its source."""
    pages = [path.name for path in (ROOT / "docs").rglob("*.md") if "```mermaid" in path.read_text()]
    assert pages == [] and "mermaid" not in (ROOT / "mkdocs.yml").read_text()


def test_every_package_and_folder_has_its_place():
    assert ROWS.keys() == {package for layer in LAYERS for package in layer.split(" | ")}
    for package in ("signals", "serving", "controller", "export", "simulation"):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders == set(re.findall(r"`(\w+)/`", ROWS[package])) & folders, package


def test_every_file_named_exists():
    for package, text in ROWS.items():
        for name in re.findall(r"`(\w+)/?`", text):
            home = ROOT / package
            assert (home / name).is_dir() or (home / f"{name}.py").is_file() or [*home.glob(f"*/{name}")], (
                f"{package}: {name}"
            )
    paths = re.findall(r"\b[a-z_]+(?:/\w+)+\.py\b", PAGE)
    assert len(paths) > 30 and [path for path in paths if not (ROOT / path).is_file()] == []
