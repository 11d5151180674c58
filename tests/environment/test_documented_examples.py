"""The first examples of docs/environment.md run as they are, in the sample city's folder."""

import contextlib
import re
import shutil

from tests.conftest import GRID, ROOT

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "environment.md").read_text(), re.M | re.S)


def test_episode_of_the_page_runs(grid_models, tmp_path, monkeypatch):
    for path in GRID.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    sumocfg = tmp_path / "grid.sumocfg"
    text = sumocfg.read_text()
    assert 'end value="3600"' in text
    sumocfg.write_text(text.replace('end value="3600"', 'end value="300"'))
    (tmp_path / "models").symlink_to(grid_models)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(BLOCKS[0], names)
    assert set(names["observations"]) == {"SA101", "SA102"} and names["env"].agents == []
    exec(BLOCKS[1], names)
    with contextlib.closing(names["env"]) as env:
        assert env.reset(seed=1)[0].shape == (21,)
