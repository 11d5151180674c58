"""city.toml: what is read, and how wrong files are refused."""

import pytest

from city import config
from city.errors import InputError

GOOD = """
[serving]
models_dir = "m"
[tl."SA 101"]
signals = ["A"]
dialect = "sumo-rl"
yellow_s = 3
"""


def write(tmp_path, text):
    path = tmp_path / "city.toml"
    path.write_text(text)
    return path


def test_a_city_is_read_and_paths_are_relative_to_its_file(tmp_path):
    city = config.load(write(tmp_path, GOOD))
    assert list(city.tls) == ["SA101"]
    assert city.tls["SA101"].signals == ("A",)
    assert city.tls["SA101"].yellow_s == 3.0
    assert city.serving.models_dir == tmp_path / "m"


def test_a_missing_file_says_how_to_name_one(tmp_path):
    with pytest.raises(InputError, match="--city"):
        config.load(tmp_path / "city.toml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[saftey]\nmin_yellow_s = 3", r"unknown table \[saftey\]"),
        ("[safety]\nmin_yelow_s = 3", "unknown key min_yelow_s"),
        ("[safety]\nmin_yellow_s = 'three'", "must be a number"),
        ("[safety]\nmin_yellow_s = true", "must be a number"),
        ("[safety]\nmin_yellow_s = -1", "out of range"),
        ("[safety]\nmin_yellow_s = nan", "out of range"),
        ("[safety]\nwalking_speed_mps = 0", r"\[safety\] walking_speed_mps must be more than 0"),
        ("[safety]\nmax_green_s = 1", "max_green_s = 1 must not be less than min_green_s, 4"),
        ("[safety]\nmax_red_s = 5", "must not be less than a green and a yellow take, 7"),
        ("[controller]\nprobes = 0", "must be 1 at least"),
        ("[controller]\nwatchdog_s = 0", r"\[controller\] watchdog_s must be more than 0"),
        ("[controller]\nfallback = 'none'", "must be one of plan, max-pressure"),
        ("[tl.A]\ndialect = 'sumo-rl'", "lacks signals"),
        ("[tl.A]\nsignals = []\ndialect = 'sumo-rl'", "signals is empty"),
        ("[tl.A]\nsignals = ['x', 'x']\ndialect = 'sappo'", "names one of them twice"),
        ("[tl.A]\nsignals = ['x', 'y']\ndialect = 'sumo-rl'", "has one signal, not 2"),
        ("[tl.A]\nsignals = ['x']\ndialect = 'other'", "is not one of sumo-rl, sappo"),
        ("[tl.A]\nsignals = ['x']\ndialect = 'sappo'\nstate = 'q'\naction = 'kc'", "state = 'q' must be one of"),
        ("[tl.A]\nsignals = ['x']\ndialect = 'sumo-rl'\nstate = 'd'", "settings of the sappo dialect"),
        ("[tl.SA_1]\nsignals=['x']\ndialect='sumo-rl'\n[tl.SA1]\nsignals=['y']\ndialect='sumo-rl'", "a second time"),
        ("[tl.A]\nsignals=['x']\ndialect='sumo-rl'\n[tl.B]\nsignals=['x']\ndialect='sumo-rl'", "belongs to A already"),
        ("[tl.'../x']\nsignals=['x']\ndialect='sumo-rl'", "is no name for a TL"),
        ("[tl", "cannot be read as TOML"),
        ("tl = 3", "must hold tables"),
        ("[serving]\naddress = 3", "must be of type str"),
    ],
)
def test_wrong_files_are_refused_with_one_line_that_names_the_place(tmp_path, text, told):
    with pytest.raises(InputError, match=told) as caught:
        config.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "city.toml" in str(caught.value) or "no name" in str(caught.value)
