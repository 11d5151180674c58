"""The tutorial, step by step: every command is run, and what it prints is compared with the page."""

import contextlib
import re

import pytest

from tests.conftest import ROOT
from tests.end_to_end.test_documented_commands import Folder

FILES = ("demand.rou.xml", "street.sumocfg", "city.toml", "make_weights.py", "compare.py")
"""The files of the page's xml, toml and python blocks, in order."""
BLOCK = r"^```(\w+)\n(.*?)^```"
VARYING = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?", "TIME"),
    (r"\bms=\d+", "ms=N"),
    (r"\d+\.\d+ ms\b", "N ms"),
    (r"(, |in )\d+\.\d+ s$", r"\1N s"),
    (r"largest difference \S+?(?=[,\s]|$)", "largest difference N"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(0\.\d{4})\d+", r"\1"),
)
"""Parts of lines that differ between machines and runs, and their replacement."""

pytestmark = pytest.mark.slow


def normalised(text, folder):
    text = text.replace(str(folder), "/tmp/crossing")
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def assert_agrees(documented, printed, folder):
    """Every documented line is printed, in order; a line of `...` stands for any others."""
    wanted, lines = normalised(documented, folder), normalised(printed, folder)
    assert wanted[-1].strip() != "..."
    is_gap, place = False, 0
    for line in wanted:
        if line.strip() == "...":
            is_gap = True
            continue
        found = lines.index(line, place) if line in lines[place:] else None
        assert found is not None, f"the page has\n{line}\nbut the program prints\n" + "\n".join(lines)
        assert is_gap or found == place, f"the page leaves out\n{lines[place]}"
        is_gap, place = False, found + 1
    assert is_gap or place == len(lines), f"the page leaves out\n{lines[place]}"


def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path):
    files, printed = iter(FILES), ""
    with contextlib.closing(Folder(tmp_path)) as folder:
        for kind, text in re.findall(BLOCK, (ROOT / "docs" / "tutorial.md").read_text(), re.M | re.S):
            if kind in ("xml", "toml", "python"):
                name = next(files)
                (tmp_path / name).write_text(text)
                if name == "compare.py":
                    printed = folder.run("python compare.py")
            elif kind == "sh":
                folder.run(re.sub(r"^(source|mkdir) .*\n", "", text, flags=re.M))
            elif kind == "text":
                assert_agrees(text, printed, tmp_path)
            elif text.startswith("$ greenserve serve"):
                folder.serve("greenserve serve")
            else:
                for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                    # check ends with 2 while there is no model; logs are on stderr
                    printed = folder.run(f"{command} 2>&1 || [ $? -eq 2 ]")
                    if output:
                        assert_agrees(output, printed, tmp_path)
    assert next(files, None) is None
