"""city.toml: reading it, and the errors of wrong files."""

import pytest

from city import config
from city.errors import InputError

VALID = """
[serving]
models_dir = "m"
[tl."SA 101"]
signals = ["A"]
dialect = "sumo-rl"
yellow_s = 3
"""

SAPPO = """
[tl.SA101]
signals = ["a"]
dialect = "sappo"
"""
NORTH = """
[serving.districts.north]
address = "tf-serving-north:8500"
tls = ["SA 101"]
"""


def write(tmp_path, text):
    path = tmp_path / "city.toml"
    path.write_text(text)
    return path


def test_names_paths_and_phases_of_a_file(tmp_path):
    city = config.load(write(tmp_path, VALID + 'phases = { north = 2, "north:left" = 5 }'))
    assert list(city.tls) == ["SA101"] and city.serving.models_dir == tmp_path / "m"
    tl = city.tls["SA101"]
    assert (tl.signals, tl.yellow_s, tl.phases) == (("A",), 3.0, {"north": 2, "north:left": 5})
    assert isinstance(hash(tl), int)
    with pytest.raises(InputError, match="--city"):
        config.load(tmp_path / "none.toml")


def test_sumo_rls_names_of_options_are_accepted(tmp_path):
    text = """
[network]
begin_time = 25200
[tl.SA101]
signals = ["A"]
dialect = "sumo-rl"
delta_time = 10
yellow_time = 4
min_green = 7
max_green = 60
"""
    city = config.load(write(tmp_path, text))
    tl = city.tls["SA101"]
    assert (tl.delta_time_s, tl.yellow_s, tl.min_green_s, tl.max_green_s) == (10, 4, 7, 60)
    assert city.network.begin_s == 25200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("all_red_s = 0", 0),
        ("all_red_s = 2", 2),
        ("all_red_s = 1.5", 1.5),
        ('all_red_s = "computed"', "computed"),
    ],
)
def test_all_red_is_a_number_or_computed(tmp_path, text, value):
    all_red_s = config.load(write(tmp_path, f"[safety]\n{text}\n")).safety.all_red_s
    assert all_red_s == value and isinstance(all_red_s, int | float) == isinstance(value, int | float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            VALID
            + """
[serving.districts.a]
address = "127.0.0.1:1"
tls = ["SA101"]
fleet = "x"
[serving.districts.b]
address = "127.0.0.1:2"
tls = []
fleet = "x"
""",
            "b\\] ",
        ),
        (VALID + "yellow_time = 3", r"\[tl.SA 101\] has both yellow_s and sumo-rl's name for it; remove one"),
        ("[safety]\nmin_green = 4", r"unknown key min_green; did you mean min_green_s\?"),
        (VALID + "colour = 3", r"unknown key colour; the keys are (?!.*control_cycle).*delta_time_s.*yellow_time"),
        (SAPPO + "colour = 3", r"unknown key colour; the keys are (?!.*delta_time).*control_cycle"),
        ("[tl.A]\ncolour = 1\nsignals = ['a']\ndialect = ['sappo']", "unknown key colour; the keys are signals"),
        (
            "[safety]\nmin_green_s = 5s",
            r"line 2 is not TOML: min_green_s = 5s; a number has no unit: write min_green_s = 5$",
        ),
        ("# K\u2028nig\n[safety]\nmin_green_s = 5s", r"line 3 is not TOML: min_green_s = 5s; a number has no unit"),
        ("[network]\nbegin_s = 7:30", r'a time must be in quotes: write begin_s = "7:30"$'),
        (
            "[network]\nbegin_s = '7:30'",
            r"begin_s = '7:30' is not a time; write hours, minutes and seconds, such as 7:30:00",
        ),
        ("[controller]\nfallback = plan  # mine", r'text must be in quotes: write fallback = "plan"$'),
        (VALID + "yellow = 3", r"\[tl.SA 101\] unknown key yellow; did you mean yellow_s\?"),
        ("[controller]\ncolour = 3", "unknown key colour; the keys are deadline_ms, hold_s,"),
        ("[safety]\nmin_green_s = '5s'", r"min_green_s = '5s' must be a number"),
        ("[training]\nmodel_number = 1" + "0" * 5000, "cannot be read as TOML: Exceeds the limit"),
        (VALID + "observation_class = 'Mine'", r"write another one as a dialect of your own, dialect = .module:Class."),
        ("[training]\npadding = 'zeros'", r"\[training\] padding = 'zeros' must be one of supersuit, or left out"),
        ('[safety]\nfloors = "none"', r"\[safety\] floors = 'none' must be one of street, dialect"),
        ("[saftey]\nmin_yellow_s = 3", r"unknown table \[saftey\]"),
        ('[tl."a/b"]\nsignals = ["A"]', r"city.toml: \[tl.a/b\] 'a/b' is not a valid TL name"),
        ('[controller]\nhttp_address = "foo"', r"\[controller\] http_address 'foo' must be HOST:PORT"),
        ('[controller]\nhttp_address = "foo:65536"', "a port below 65536"),
        ("[safety]\nmin_yelow_s = 3", r"unknown key min_yelow_s; did you mean min_yellow_s\?"),
        ("[safety]\nmin_yellow_s = 'three'", "must be a number"),
        ("[safety]\nmin_yellow_s = true", "must be a number"),
        ("[safety]\nall_red_s = 'compute'", r"\[safety\] all_red_s = 'compute' must be a number or \"computed\"$"),
        ("[safety]\nall_red_s = true", r"\[safety\] all_red_s = True must be a number"),
        ("[safety]\nall_red_s = []", r"\[safety\] all_red_s = \[\] must be a number"),
        ("[safety]\nall_red_s = -1", r"\[safety\] all_red_s = -1 (is )?out of range"),
        ("[safety]\nall_red_s = nan", "out of range"),
        ("[safety]\nmin_yellow_s = -1", "out of range"),
        ("[safety]\nmin_yellow_s = nan", "out of range"),
        ("[safety]\nwalking_speed_mps = 0", r"\[safety\] walking_speed_mps = 0 must be greater than 0"),
        ("[safety]\nmax_green_s = 1", "max_green_s = 1 must not be less than min_green_s, 4"),
        ("[safety]\nmax_red_s = 5", "must not be less than a green and a yellow together, 7"),
        ("[safety]\nmax_red_s_of_signal = {}", "unknown key max_red_s_of_signal; did you mean max_red_s"),
        (VALID + "max_red_s = 90", r"\[tl.SA 101\] max_red_s = 90 must be a table, such as { left = 90 }"),
        (
            VALID + "max_red_s = { left = 90, 'A:left' = 6.9 }",
            r"\[tl.SA101\] max_red_s A:left = 6.9 must not be less than a green and a yellow together, 7$",
        ),
        ("[controller]\nrecovery_answers = 0", "must be at least 1"),
        ("[controller]\nwatchdog_s = 0", r"\[controller\] watchdog_s = 0 must be greater than 0 and at most 3599"),
        ("[controller]\nfallback = 'none'", "must be one of plan, max-pressure"),
        ("[tl.A]\ndialect = 'sumo-rl'", "signals is missing"),
        ("[tl.A]\nsignals = []\ndialect = 'sumo-rl'", "signals is empty"),
        ("[tl.A]\nsignals = ['x', 'x']\ndialect = 'sappo'", "lists x twice; remove one"),
        ("[safety]\nwalking_mps = 1.2", r"\[safety\] walking_mps is now called walking_speed_mps; rename it"),
        ("[controller]\nprobes = 2", r"\[controller\] probes is now called recovery_answers; rename it"),
        (
            "[tl.A]\nsignals = ['x']\ndialect = 'sumo-rl'\nsizes = [64]",
            r"\[tl.A\] sizes is now called hidden_sizes; rename it",
        ),
        ("[tl.SA_1]\nsignals=['x']\ndialect='sumo-rl'\n[tl.SA1]\nsignals=['y']\ndialect='sumo-rl'", "a second time"),
        ("[tl.A]\nsignals=['x']\ndialect='sumo-rl'\n[tl.B]\nsignals=['x']\ndialect='sumo-rl'", "already belongs to A"),
        ("[tl.'../x']\nsignals=['x']\ndialect='sumo-rl'", "is not a valid TL name"),
        ("[tl", "cannot be read as TOML"),
        ("tl = 3", "must contain tables"),
        ("[serving]\naddress = 3", "must be a string"),
        (
            VALID + "[training.times]\nSA999 = { yellow_s = 3, all_red_s = 1 }",
            r"\[training.times\] SA999: there is no \[tl.SA999\]",
        ),
        (VALID + "[training.times]\nSA101 = { yellow_s = 3 }", r"\[training.times\] SA101 all_red_s is missing"),
        (
            VALID
            + "[training.times]\nSA101 = { yellow_s = 3, all_red_s = 1 }\nSA_101 = { yellow_s = 4, all_red_s = 1 }",
            r"\[training.times\] SA_101: TL SA101 is listed a second time; remove one of the lines",
        ),
        (VALID + "[training]\ntimes = 3", r"\[training.times\] must contain lines such as"),
        (VALID + "[serving.districts.north]\ntls = ['SA101']", r"\[serving.districts.north\] address is missing"),
        (VALID + "[serving.districts.north]\naddress = 'x:1'", r"\[serving.districts.north\] tls is missing"),
        (VALID + "[serving.districts.north]\naddress = 'x'\ntls = ['SA101']", "address 'x' must be HOST:PORT"),
        (VALID + "[serving.districts.north]\naddress = 'x:1'\ntls = ['SA9']", "SA9 is not one of the TLs SA101"),
        (VALID + "[serving.districts.North]\naddress = 'x:1'\ntls = ['SA101']", "must be named by lower-case letters"),
        (VALID + "[tl.B]\nsignals=['x']\ndialect='sumo-rl'\n" + NORTH, "B is not in any district; add it to one"),
        (VALID + NORTH + NORTH.replace("north", "south"), "SA101 is in district north already"),
        (VALID.replace("[serving]", "[serving]\ndistricts = 3"), "must contain tables such as"),
        (
            VALID + "phases = 2",
            r'\[tl.SA 101\] phases = 2 must be a table, such as { "A1B1" = 2 }',
        ),
        (VALID + "phases = { north = 'two' }", r"\[tl.SA 101\] phases north = 'two' must be an integer"),
        (VALID + "phases = { north = 17 }", r"\[tl.SA 101\] phases north = 17 must be a phase number from 1 to 16"),
        (VALID + "phases = { north = 0 }", r"\[tl.SA 101\] phases north = 0 must be a phase number from 1 to 16"),
    ],
)
def test_wrong_file_is_refused_in_one_line_that_names_the_place(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        config.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "city.toml" in str(caught.value)


def test_max_red_of_movements_is_that_of_every_signal_of_its_tl(tmp_path):
    others = "[tl.B]\nsignals = ['b', 'c']\ndialect = 'sumo-rl'\nmax_red_s = { left = 7 }\n"
    city = config.load(write(tmp_path, VALID + others))
    assert city.safety.max_red_s_of_signal == {"b": {"left": 7.0}, "c": {"left": 7.0}}


def test_district_has_a_fleet_of_its_name(tmp_path):
    city = config.load(write(tmp_path, VALID + NORTH))
    assert city.serving.districts == {"north": config.District("tf-serving-north:8500", ("SA101",), "north")}
    city = config.load(write(tmp_path, VALID + NORTH + 'fleet = "other"\n'))
    assert city.serving.districts["north"].fleet == "other"


@pytest.mark.parametrize("value", ["27000", '"7:30:00"', "07:30:00", '"27000"'])
def test_begin_is_seconds_or_a_time_in_sumos_format(tmp_path, value):
    assert config.load(write(tmp_path, f"[network]\nbegin_s = {value}")).network.begin_s == 27000
