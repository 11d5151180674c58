"""The live page in a real browser: Debian's chromium, driven by playwright."""

import contextlib
import functools
import re
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.operator import operator_token
from tests.end_to_end import browser as real_browser
from tests.end_to_end.browser import COLOURS, VIEWS, needs_chromium, select_tl
from tests.end_to_end.programs import controller, free_port, sumo
from tests.end_to_end.trainer import Trainer
from tests.waiting import wait_until

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.alone]

RUN = ["--policy", "max-pressure", "--speed", "5"]
SECONDS, CHANGES = 12, 4
"""Simulated seconds, and different states of the city, that are compared at least."""
LAG_S = 10
"""Simulated seconds by which the states of other signals may be older, while the machine is busy."""


opened = functools.partial(real_browser.opened, status="live")


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory):
    """A folder for modes, log and token: those of other runs are not shown."""
    folder = str(tmp_path_factory.mktemp("operator"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


def name_operator(page, name):
    """Answer the question for the operator's name."""
    page.wait_for_selector("#author-dialog[open]")
    page.fill("#author", name)
    page.keyboard.press("Enter")


@contextlib.contextmanager
def running(*arguments, address="127.0.0.1:0"):
    """A controller with the page; yields (its address with the token, process)."""
    with controller(*RUN, *arguments, "--page", address) as process:
        for line in process.stderr:
            if found := re.search(r"the live page: (http\S+)", line):
                break
        else:
            raise AssertionError("the controller has ended without a page")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # so that its pipe never fills
        address, _, fragment = found[1].partition("#")
        assert fragment == "token=$(cat"  # a log may be readable by other users
        yield f"{address}#token={operator_token.kept().value}", process


@pytest.fixture(scope="module")
def url():
    with running() as (address, _):
        yield address


@pytest.fixture
def page(browser, url):
    with opened(browser, url) as page:
        yield page


def test_the_page_shows_the_states_that_sumo_shows(browser):
    shown, seen, ended = {}, {}, threading.Event()

    def follow(port):
        trainer = Trainer(port)  # before the controller's commands of the same second
        while not ended.is_set():
            trainer.step()
        shown.update(enumerate(trainer.history, 1))
        trainer.client.close(False)

    with sumo(2, "--seed", "1") as (port, _), ThreadPoolExecutor() as pool:
        following = pool.submit(follow, port)
        flags = ("--sumo", f"127.0.0.1:{port}", "--order", 2, "--no-guard", "--infer-tl", "SA101,SA102,SA105")
        with contextlib.ExitStack() as closing:
            closing.callback(ended.set)
            address, _ = closing.enter_context(running(*flags))
            page = closing.enter_context(opened(browser, address))
            ids, count = page.evaluate(
                "[greenserve.map.city.signals.map((each) => each.id), greenserve.map.city.controlled]"
            )
            while len(seen) < SECONDS or len({tuple(states.items()) for states in seen.values()}) < CHANGES:
                second, states = page.evaluate("[greenserve.shown.second, [...greenserve.map.states]]")
                if second:
                    seen[second] = {ids[signal]: state for signal, state in states}
                time.sleep(0.05)
            ended.set()
            following.result()
    read = set()
    for second, states in seen.items():
        assert tuple(states) in (tuple(ids[:count]), tuple(ids))
        assert {signal: states[signal] for signal in ids[:count]} == {
            signal: shown[second][signal] for signal in ids[:count]
        }
        # the others are read beside the decisions, as often as there is time
        for other in states.keys() - ids[:count]:
            read.add(states[other])
            assert states[other] in {shown[at_s][other] for at_s in shown if second - LAG_S <= at_s <= second + 1}
    assert len(read) > 1


def test_a_marker_is_clicked_and_keys_do_the_rest(page):
    x, y = page.evaluate("greenserve.map.screen(...greenserve.map.city.tls[2].at)")
    box = page.locator("#map").bounding_box()
    page.mouse.click(box["x"] + x, box["y"] + y)
    page.wait_for_selector("#tl-panel:visible")
    names = page.evaluate("greenserve.map.city.tls.map((tl) => tl.tl)")
    assert page.inner_text("#tl-name") == names[2]
    page.focus("#map")
    page.keyboard.press("n")
    assert page.inner_text("#tl-name") == names[3]
    scale = page.evaluate("greenserve.map.scale")
    page.keyboard.press("+")
    assert page.evaluate("greenserve.map.scale") > scale
    page.keyboard.press("Escape")
    page.keyboard.press(" ")
    name_operator(page, "Ada")
    page.wait_for_selector("#status.paused")
    wait_until(lambda: "pause, by Ada" in page.inner_text("#commands"))
    second = page.evaluate("greenserve.run().second")
    for _ in range(5):
        page.keyboard.press(".")
    wait_until(lambda: page.evaluate("greenserve.run().second") >= second + 5)
    page.wait_for_timeout(1500)
    assert page.evaluate("greenserve.run().second") == second + 5, "five fast steps are five seconds"
    assert page.locator("#status.paused").is_visible()
    page.keyboard.press(" ")
    page.wait_for_selector("#status.live")


def test_without_the_token_the_page_only_shows_and_the_address_bar_never_shows_it(browser, url):
    with opened(browser, url.partition("#")[0]) as page:
        assert page.locator("#pause").is_disabled() and page.locator("#no-token").is_visible()
        assert page.locator("#zoom-in").is_enabled()
        select_tl(page, "SA101")
        assert page.locator("[data-mode]:enabled").count() == 0 and page.locator("#no-token").is_visible()
    with opened(browser, url.partition("#")[0] + "#token=" + 24 * "x") as page:
        page.click("#pause")
        name_operator(page, "Ada")
        page.wait_for_selector("#no-token:visible")  # the controller has another one
        assert page.locator("#pause").is_disabled()
    with opened(browser, url) as page:
        assert "token" not in page.url
        page.reload()
        page.wait_for_selector("#status.live")
        assert page.locator("#pause").is_enabled()


def test_the_page_survives_a_restart_of_the_controller_and_stays_in_command(browser):
    address = f"127.0.0.1:{free_port()}"
    with running(address=address) as (url, process):
        context = opened(browser, url)
        page = context.__enter__()
        process.send_signal(signal.SIGTERM)
        page.wait_for_selector("#lost.ended:visible")  # a normal end is no alarm
        assert page.inner_text("#lost-text") == "The run has ended. The page connects again by itself."
        assert process.wait(30) == 0
    with running(address=address):
        page.wait_for_selector("#status.live")
        assert not page.locator("#lost").is_visible()
        page.click("#pause")
        name_operator(page, "Ada")
        page.wait_for_selector("#status.paused")
        context.__exit__(None, None, None)


def test_a_watched_run_whose_sumo_ends_is_shown_as_ended(browser):
    with (
        sumo(1) as (port, process_of_sumo),
        running("--sumo", f"127.0.0.1:{port}", "--no-guard") as (url, _),
        opened(browser, url) as page,
    ):
        process_of_sumo.kill()
        page.wait_for_selector("#status.ended")
        wait_until(lambda: "The run has ended: the connection to SUMO was lost" in page.inner_text("#lost"))
        assert page.locator("#lost:not(.ended)").is_visible()


def test_a_silent_controller_is_waited_for_and_a_lost_one_has_no_live_buttons(browser):
    with running() as (url, process), opened(browser, url) as page:
        wait_until(lambda: page.evaluate("greenserve.shown.second") > 3)
        process.send_signal(signal.SIGSTOP)
        page.wait_for_selector("#status.waiting")
        process.send_signal(signal.SIGCONT)
        page.wait_for_selector("#status.live")
        select_tl(page, "sa101")
        assert page.locator("[data-command]:disabled").count() == 0
        process.kill()
        page.wait_for_selector("#status.lost")
        since = page.inner_text("#clock")
        wait_until(lambda: f"since {since}. If it has ended or hangs, the simulation" in page.inner_text("#lost-text"))
        wait_until(lambda: re.search(r"Silent for [1-9]\d* s", page.inner_text("#lost-for")))
        assert page.locator("[data-command]:enabled, [data-mode]:enabled").count() == 0


def test_a_commands_name_can_be_refused_and_changed(page):
    page.click("#pause")
    page.wait_for_selector("#author-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#author-dialog", state="hidden")
    page.wait_for_timeout(500)
    assert page.inner_text("#status") == "live"  # no name, no command
    page.click("#operator")
    name_operator(page, "Eve")
    assert page.inner_text("#operator") == "as Eve" and page.inner_text("#status") == "live"


def test_a_search_without_a_result_is_forgotten(page):
    page.fill("#search", "nothing")
    page.keyboard.press("Enter")
    page.wait_for_selector("#toast:visible")
    assert page.inner_text("#toast") == "No TL or signal is called nothing."
    page.fill("#search", "SA101")
    page.wait_for_selector("#toast", state="hidden")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tl-panel:visible")
    assert not page.locator("#toast").is_visible()


NOW = dict(
    mode="policy", since_s=5, set_by="", set_reason="", until_s=0, model="SA101", version=3, pinned_version=0, reason=""
)
DECISION = dict(at_s=10, observation=[], phases=[0], min_green_passed=True, action=[1], scores=[], failure="")


@pytest.mark.parametrize(
    ("now", "decision", "pressed", "bold", "note"),
    [
        pytest.param({}, {}, ["policy"], [1], "", id="policy"),
        pytest.param({"mode": "fixed", "set_by": "Ada"}, {}, ["fixed"], [], "not followed in mode fixed", id="fixed"),
        pytest.param({"mode": "hold", "set_by": "Ada"}, {}, ["hold"], [2], "not followed in mode hold", id="hold"),
        pytest.param({"mode": "fallback"}, {"action": [], "failure": "Unavailable: x"}, [], [], "no valid answer", id="fallback"),
        pytest.param({"mode": "recovering"}, {}, [], [], "not followed in mode recovering", id="recovering"),
    ],
)  # fmt: skip
def test_bold_and_pressed_is_what_controls_the_signals(page, now, decision, pressed, bold, note):
    select_tl(page, "SA101")
    page.wait_for_selector("#tl-choice .choice")
    shown = page.evaluate(
        """([now, decision]) => {
            const panel = greenserve.tlPanel(), requested = [panel.tl.greens[0][2]];
            panel.update({ is_first: true, now, decision, band: [], queue: [], overrides: [], sentences: [], shown: [],
                states: { requested, permitted: requested } }, 10);
            const texts = (query) => [...document.querySelectorAll(query)].map((each) => each.textContent);
            return [[...document.querySelectorAll("[data-mode][aria-pressed=true]")].map((each) => each.dataset.mode),
                texts(".choice.chosen > span:first-child"), texts("#tl-choice .note").join()];
        }""",
        [{**NOW, **now}, {**DECISION, **decision}],
    )
    names = page.evaluate("greenserve.tlPanel().tl.green_names[0]")
    assert [text for text in page.locator("#tl-sees dt").all_inner_texts() if "phase" in text] == [
        f"phase {name}" for name in names
    ]
    assert shown[:2] == [pressed, [names[green] for green in bold]] and note in shown[2]
    now_green = page.evaluate("""() => {
        const panel = greenserve.tlPanel(), texts = () => [...document.querySelectorAll(".choice.now")].map((each) => each.textContent);
        const found = [panel.tl.greens[0][3], panel.tl.greens[0][3].replaceAll("G", "y")].map((state) => {
            panel.shown = [state];
            panel.showStates({});
            return texts();
        });
        return found.map((each) => each.length).concat(found[0][0].includes(panel.tl.green_names[0][3]));
    }""")
    assert now_green == [1, 0, True]


def test_a_choice_is_next_until_it_is_green_and_ignored_before_the_min_green(page):
    select_tl(page, "SA101")
    page.wait_for_selector("#tl-choice .choice")
    marks = page.evaluate(
        """([now, decision]) => [[true, 0], [true, 1], [false, 0]].map(([passed, green]) => {
            const panel = greenserve.tlPanel();
            panel.shown = [panel.tl.greens[0][green]];
            panel.update({ is_first: true, now, decision: { ...decision, min_green_passed: passed }, band: [], queue: [],
                overrides: [], sentences: [], shown: [], states: {} }, 10);
            return [...document.querySelectorAll(".choice > span:first-child")].slice(0, 2)
                .map((each) => getComputedStyle(each, "::after").content.replaceAll('"', ""));
        })""",
        [NOW, DECISION],
    )
    kept = " ● green now"
    assert marks[:2] == [[kept, " ◂ next"], ["none", kept]]
    assert marks[2] == [kept, " ◂ chosen, ignored before the min green"]
    shares = [text for text in page.locator("#tl-sees th").all_inner_texts() if "% of the lane" in text]
    assert shares == ["density, % of the lane", "queue, % of the lane"]


def test_a_tl_of_several_signals_says_so_and_has_a_label_for_each(page):
    select_tl(page, "SA108")
    assert page.inner_text("#tl-signals") == "2 signals, controlled as one: C1, C2"
    wait_until(lambda: [text[:4] for text in page.locator("figcaption").all_inner_texts()] == ["C1: ", "C2: "])
    labels = page.evaluate("""() => {
        const { map } = greenserve, { context } = map.layers[1], drawn = [], fillText = context.fillText;
        map.fit();
        context.fillText = (text) => drawn.push(text);
        map.drawTraffic();
        context.fillText = fillText;
        return drawn;
    }""")
    assert {"SA108: C1", "SA108: C2", "SA101"} <= set(labels) and "SA108" not in labels
    select_tl(page, "SA101")
    assert page.inner_text("#tl-signals") == ""


@pytest.mark.parametrize(
    ("points", "means"),
    [
        ([(0, 4), (90, 10), (180, 0)], [4, 4, 10]),
        # 20 s of the first and 40 s of the second; less than a minute since the begin
        ([(0, 3), (50, 6), (90, 0)], [3, 3, 5]),
        ([(0, 2), (30, 4), (60, 8), (120, 0)], [2, 2, 3, 8]),
        ([(100, 7)], [7]),
    ],
)
def test_the_mean_of_a_minute_knows_decisions_that_are_rarer(page, points, means):
    found = page.evaluate(
        "(points) => import('/static/panels.js').then(({ minuteMeans }) => "
        "minuteMeans(points.map(([t]) => t), points.map(([, q]) => q)))",
        points,
    )
    assert found == means


def test_times_are_those_of_the_streets_clock(page):
    page.wait_for_selector("#commands *")
    texts = page.evaluate("""() => {
        const run = { second: 4000, is_paused: false, speed: 1, late_steps: 0, lost_s: 0 };
        const commands = [{ at_s: 3601, text: "step to second 3700.5, by Ada" },
            { at_s: 3600, text: "SA101 set to fixed until second 4500, by Ada" }];
        const settings = [{ at_s: 3600, text: "SA101 and 2 more: fixed until second 4500, by Ada" },
            { at_s: null, text: "SA102: version 3, by Ada" }];
        greenserve.cityPanel().update({ run, commands, settings, latency_ms: {}, alarms: [] }, 1);
        const lines = [...document.querySelectorAll("#commands li, #settings li")].map((each) => each.textContent);
        return [...lines, document.querySelector("#commands time").title];
    }""")
    assert texts == [
        "01:00:00 SA101 and 2 more: fixed until 01:15:00, by Ada",
        "SA102: version 3, by Ada",
        "01:00:01 step to 01:01:40, by Ada",
        "01:00:00 SA101 set to fixed until 01:15:00, by Ada",
        "simulated second 3601",
    ]
    wait_until(lambda: page.get_attribute("#clock", "title").startswith("simulated second "))


def test_one_cause_is_shown_and_its_consequences_are_folded(page):
    page.wait_for_selector("#alarms *")
    shown = page.evaluate("""() => {
        const run = { second: 100, is_paused: false, speed: 1, late_steps: 0, lost_s: 0 };
        const of = (name, consequence_of) => ({ id: `Greenserve${name}`, name: `Greenserve${name}`, severity: "critical",
            since_s: 5, count: 1, text: "", ended_s: null, acknowledged_by: "", consequence_of });
        const alarms = [of("ManyTLsInFallback", "GreenserveServerDown"), of("ServerDown", ""), of("RunLate", ""),
            of("TLInFallback", "GreenserveServerDown"), of("Overrides", "GreenserveGone")];
        greenserve.cityPanel().update({ run, commands: [], latency_ms: {}, alarms }, 1);
        greenserve.showAlarmCount(alarms);
        const names = (query) => [...document.querySelectorAll(query)].map((each) => each.textContent);
        return [names("#alarms > li > div > strong"), names("#alarms .consequences > summary"),
            names("#alarms .consequences strong"), document.getElementById("alarm-count").textContent];
    }""")
    assert shown == [
        ["Server Down", "Run Late", "Overrides"], ["2 consequences"], ["Many TLs In Fallback", "TL In Fallback"],
        "3 alarms, critical",
    ]  # fmt: skip


def test_the_legend_has_the_colours_of_vehicles_and_queues(page):
    page.click("#legend-fold summary")
    assert "vehicle slower than 5 m/s" in page.inner_text("#legend")
    pixels = page.evaluate("""() => [...document.querySelectorAll("#legend [data-swatch] canvas")].map((canvas) => {
        const [r, g, b, alpha] = canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
        return ["#" + [r, g, b].map((each) => each.toString(16).padStart(2, "0")).join(""), alpha];
    })""")
    colours = page.evaluate("['free', 'slow', 'stopped', 'queue'].map((name) => greenserve.map.colours[name])")
    assert pixels[:4] == [[colour, 255] for colour in colours]
    alphas = [alpha for _, alpha in pixels[4:]]
    assert len(alphas) == 3 and alphas == sorted(set(alphas)) and alphas[0] > 40 and alphas[-1] < 255


def test_the_legend_is_open_at_the_first_visit_until_it_is_closed(browser, url):
    with opened(browser, url, is_first_visit=True) as page:
        assert page.locator("#legend").is_visible()
        legend = page.locator("#legend-fold").bounding_box()
        west = page.evaluate("greenserve.map.screen(greenserve.map.city.bounds[0], 0)[0]")
        assert west >= legend["x"] + legend["width"], "it covers no street"
        page.reload()
        page.wait_for_selector("#legend:visible")
        page.click("#legend-fold summary")
        wait_until(lambda: page.evaluate("localStorage.getItem('legend')") == "closed")
        page.reload()
        page.wait_for_selector("#status.live")
        assert not page.locator("#legend").is_visible()
    with opened(browser, url, is_first_visit=True, width=390, height=844) as page:
        assert not page.locator("#legend").is_visible(), "it would hide the map of a phone"


def test_printed_is_the_panel_alone_and_whole(page):
    select_tl(page, "SA101")
    page.wait_for_selector("#tl-choice .choice")
    assert not page.locator("#printed").is_visible()
    page.emulate_media(media="print")
    wait_until(lambda: re.fullmatch(r"printed .*\d:\d\d.*", page.inner_text("#printed")))
    assert not page.locator("#map").is_visible() and not page.locator("#command").is_visible()
    assert page.evaluate(
        "document.getElementById('panel').scrollHeight === document.getElementById('panel').clientHeight"
    )


@pytest.mark.parametrize(
    ("kind", "action", "shown"),
    [
        ("kc", [0.955, -0.5], ["C1: kc 0.955", "C2: kc -0.5"]),
        ("gro", [0.1, 0.2, 0.3, 0.4], ["C1: offset 0.1", "C1: gr 0.2", "C2: offset 0.3", "C2: gr 0.4"]),
    ],
)
def test_numbers_of_an_action_have_their_signals(page, kind, action, shown):
    select_tl(page, "SA108")
    decision = {"at_s": 1, "failure": "", "action": action, "scores": [], "min_green_passed": True}
    page.evaluate(
        "([kind, decision]) => { const panel = greenserve.tlPanel(), tl = panel.tl; panel.tl = { ...tl, action: kind };"
        " panel.showChoice(decision, 'policy'); panel.tl = tl; }",
        [kind, decision],
    )
    assert page.locator("#tl-choice p").all_inner_texts() == shown


def test_an_alarm_and_the_list_of_the_worst_lead_to_their_tls(page):
    page.wait_for_selector("#alarms *")
    chosen = page.evaluate("""() => {
        const run = { second: 100, is_paused: false, speed: 1, late_steps: 0, lost_s: 0 }, name = "GreenserveTLInFallback";
        const alarms = [{ id: name, name, severity: "warning", since_s: 5, count: 1, text: "", ended_s: null,
            acknowledged_by: "", subjects: ["SA104", "answers"] }];
        const traffic = { vehicles: 9, halting: 5, delay_s: 90, counted_tls: 8, mean_vehicles: null, mean_halting: 2.25, span_s: 900,
            worst: [["SA102", 5, 90], ["SA101", 0, null]] };
        greenserve.cityPanel().update({ run, commands: [], latency_ms: {}, alarms, traffic }, 1, 36);
        const texts = [...document.querySelectorAll(".figures b, #worst tbody tr")].map((each) => each.innerText);
        const notes = () => ["mean-vehicles", "mean-halting", "delay-of"].map((id) => document.getElementById(id).textContent);
        const titles = [...document.querySelectorAll("#worst td:last-child")].map((each) => each.title.slice(0, 7));
        const own = notes(), earlier = { of: "Tuesday's record", vehicles: 298, halting: 21, delay_s: 120 };
        greenserve.cityPanel().update({ run, commands: [], latency_ms: {}, alarms, traffic: { ...traffic, earlier } }, 1, 36);
        const found = [own, notes(), titles];
        greenserve.cityPanel().traffic({ ...traffic, counted_tls: 7 }, 36);
        found.push(document.getElementById("delay-of").textContent);
        for (const query of ["#alarms .places button", "#worst button"]) {
            const buttons = document.querySelectorAll(query);
            buttons[0].click();
            found.push(document.getElementById("tl-name").textContent, buttons.length, greenserve.map.scale > 2);
        }
        return [texts, found];
    }""")
    assert chosen[0][:4] == ["9", "5", "36 km/h", "1.5 min"]
    assert [text.split() for text in chosen[0][4:]] == [["SA102", "5", "1.5", "min"], ["SA101", "0", "–"]]
    assert chosen[1][0] == ["", "mean of last 15 min: 2.3", "of all vehicles, last 15 min"]
    assert chosen[1][1] == [
        "Tuesday's record at this time: 298", "Tuesday's record at this time: 21",
        "of all vehicles, last 15 min (Tuesday's record: 2 min)",
    ]  # fmt: skip
    assert chosen[1][2:4] == [["", "Unknown"], "of 7 of 8 TLs, last 15 min"]
    assert chosen[1][4:] == ["SA104", 1, True, "SA102", 2, True]
    at = page.evaluate("[greenserve.map.x, greenserve.map.y, ...greenserve.tlPanel().tl.at]")
    assert at[:2] == at[2:]


def test_one_command_with_a_reason_is_for_all_chosen_tls(page):
    for index, modifiers in ((2, []), (0, ["Shift"]), (1, ["Shift"]), (1, ["Shift"])):
        x, y = page.evaluate(f"greenserve.map.screen(...greenserve.map.city.tls[{index}].at)")
        page.locator("#map").click(position={"x": x, "y": y}, modifiers=modifiers)
    names = page.evaluate("greenserve.map.city.tls.map((tl) => tl.tl)")
    assert page.inner_text("#command-tls") == f"A command is for 2 TLs: {names[2]}, {names[0]}"
    assert page.inner_text("#tl-name") == names[2]
    page.fill("#reason", "roadworks in Main Street")
    page.click("[data-mode=fixed]")
    name_operator(page, "Ada")
    wait_until(lambda: page.evaluate("[0, 1, 2].map((k) => greenserve.map.modes[k])") == [4, 0, 4])
    page.wait_for_selector("[data-mode=fixed][aria-pressed=true]")
    assert "set by Ada: roadworks in Main Street" in page.inner_text("#tl-mode")
    assert page.input_value("#reason") == ""
    page.keyboard.press("Escape")
    page.wait_for_selector("#city-panel:visible")
    assert not page.locator("#command").is_visible()
    line = f"{names[2]}, {names[0]} set to fixed, by Ada: roadworks in Main Street"
    wait_until(lambda: line in page.inner_text("#commands"))
    page.click("#all-shown")
    assert page.inner_text("#command-tls").startswith(f"A command is for {len(names)} TLs: ")
    page.click("[data-mode=policy]")
    wait_until(lambda: set(page.evaluate("[...greenserve.map.modes]")) == {0})
    with page.expect_download() as download:
        page.click("h3 a")
    assert "roadworks in Main Street" in download.value.path().read_text()


MIN_CONTRAST = 4.5
"""Least contrast of a text and its background (WCAG, level AA)."""
LOW_CONTRASTS = """(least) => {
    const channel = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const over = (front, back, alpha) => front.slice(0, 3).map((c, k) => alpha * c + (1 - alpha) * back[k]);
    const behind = (element) => {
        if (!element) return [255, 255, 255];
        const colour = numbers(getComputedStyle(element).backgroundColor), alpha = colour[3] ?? 1;
        return alpha === 1 ? colour : over(colour, behind(element.parentElement), alpha);
    };
    const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
    const low = [];
    for (const element of document.querySelectorAll("header *, #panel *")) {
        const hasText = [...element.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
        if (!hasText || !element.checkVisibility()) continue;
        const back = behind(element), front = over(numbers(getComputedStyle(element).color), back, opacity(element));
        const [dark, bright] = [light(front), light(back)].sort((a, b) => a - b), ratio = (bright + 0.05) / (dark + 0.05);
        if (ratio < least) low.push(`${element.textContent.trim()}: ${ratio.toFixed(1)}`);
    }
    return low;
}"""


@contextlib.contextmanager
def relayed(browser, url, relay=lambda number, message: message):
    """(the live page, its connections so far, console errors). `relay(number of the connection, message)`: what the
    page gets, or None."""
    connections, errors = [], []

    def route(socket):
        def pass_on(message):
            if (relayed := relay(number, message)) is not None:
                socket.send(relayed)

        connections.append(socket)
        number = len(connections)
        socket.connect_to_server().on_message(pass_on)

    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(f"not caught: {error}"))
        page.route_web_socket(re.compile("/live$"), route)
        page.clock.install()
        page.goto(url)
        page.wait_for_selector("#status.live")
        yield page, connections, errors


def test_a_laptop_that_sleeps_connects_again(browser, url):
    """The other end is gone without a word, and an hour has passed on the page's clock."""
    silent = threading.Event()
    with relayed(browser, url, lambda number, message: None if number == 1 and silent.is_set() else message) as (
        page,
        connections,
        _,
    ):
        silent.set()
        page.wait_for_timeout(1500)  # a request is in flight
        assert len(connections) == 1
        page.clock.fast_forward("01:00:00")
        second = page.evaluate("greenserve.shown.second")
        wait_until(lambda: page.evaluate("greenserve.shown.second") > second)
        assert len(connections) == 2 and not page.locator("#lost").is_visible()


def test_a_frame_that_cannot_be_read_is_an_error_and_the_page_connects_again(browser, url):
    head = b"\x01\x00\x01\x00" + bytes(12)
    garbage = {1: b"", 2: b"\x01\x00\x09\x00" + bytes(12), 3: head + b"\x02\0\0\0\xff\0\0\0", 4: bytes(100)}
    with relayed(browser, url, lambda number, message: garbage.get(number, message)) as (_, connections, errors):
        assert len(connections) == len(garbage) + 1 and len(errors) == len(garbage)
        assert all("frame" in text and "not caught" not in text for text in errors)


def test_a_frame_without_news_changes_no_clock(browser, url):
    with relayed(browser, url) as (page, connections, errors):
        wait_until(lambda: page.evaluate("greenserve.shown.second") > 0)
        page.evaluate(
            "new MutationObserver(() => { window.zero ||= document.getElementById('clock').textContent === '00:00:00'; })"
            ".observe(document.getElementById('clock'), { childList: true, subtree: true, characterData: true })"
        )
        frames = page.evaluate("Number(document.documentElement.dataset.frames)")
        connections[0].send(b"\x01\x00\x01\x00" + bytes(12))
        wait_until(lambda: page.evaluate("Number(document.documentElement.dataset.frames)") > frames + 2)
        assert errors == [] and not page.evaluate("window.zero")


def test_an_alarm_has_its_runbook_on_the_page(page):
    page.wait_for_selector("#alarms *")
    page.evaluate("""() => {
        const run = { second: 100, is_paused: false, speed: 1, late_steps: 0, lost_s: 0 };
        const alarm = { id: "GreenserveServerDown", name: "GreenserveServerDown", severity: "critical", since_s: 5 };
        const alarms = [{ ...alarm, count: 2, text: "<b>Unavailable</b>", ended_s: null, acknowledged_by: "" }];
        greenserve.cityPanel().update({ run, commands: [], latency_ms: {}, alarms }, 1);
    }""")
    details = page.locator("#alarms details")
    assert "To do: greenserve status --server HOST:PORT" in details.inner_text()
    details.locator("summary").click()
    assert "If it does not run, restart it." in details.inner_text() and "](" not in details.inner_text()
    assert "<b>Unavailable</b>" in page.inner_text("#alarms")  # text, not HTML


def test_a_tls_panel_leaves_the_count_of_alarms_visible(page):
    select_tl(page, "SA101")
    counted = page.evaluate("""() => {
        const active = { ended_s: null, severity: "warning" }, ended = { ended_s: 5, severity: "critical" };
        greenserve.showAlarmCount([active, ended, { ...active, severity: "critical" }]);
        const count = document.getElementById("alarm-count"), shown = [count.textContent, count.className, document.title];
        const isVisible = count.checkVisibility();
        greenserve.showAlarmCount([ended]);
        return [isVisible, ...shown, count.checkVisibility()];
    }""")
    assert counted == [True, "2 alarms, critical", "status critical", "(2) grid · greenserve", False]


@pytest.mark.parametrize(("width", "height", "scheme"), VIEWS)
def test_screenshots_of_both_themes_and_of_phone_width(browser, url, tmp_path, width, height, scheme):
    with opened(browser, url, width=width, height=height, scheme=scheme) as page:
        page.wait_for_selector("#modes button:disabled")  # modes that no TL has
        assert page.evaluate(LOW_CONTRASTS, MIN_CONTRAST) == []
        select_tl(page, "SA101")
        page.wait_for_selector("#tl-chart canvas")
        assert page.evaluate(LOW_CONTRASTS, MIN_CONTRAST) == []
        page.screenshot(path=tmp_path / "page.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#map").bounding_box()["height"] > 0.4 * height
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(17, 22, 28)" if scheme == "dark" else "rgb(244, 246, 248)")
        assert page.evaluate(COLOURS, "street") > 2 and page.evaluate(COLOURS, "traffic") > 5
