"""A real browser: Debian's chromium, driven by playwright."""

import contextlib
import re
import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package chromium)")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
TIMEOUT_MS = 30_000
VIEWS = [(1280, 800, "dark"), (1280, 800, "light"), (390, 844, "dark"), (390, 844, "light")]
"""Width and height in pixels, and colour scheme: a desk and a phone."""
COLOURS = """(id) => {
    const canvas = document.getElementById(id);
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(image.data.buffer)).size;
}"""
"""JavaScript: the number of colours on a canvas, by its id."""


@contextlib.contextmanager
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser, url, status, width=1280, height=800, scheme="dark", is_first_visit=False):
    """The page in a context of its own, once it shows a status; a browser's error or a script's error fails the
    test."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    if not is_first_visit:
        context.add_init_script("localStorage.setItem('legend', 'closed')")
    page, errors = context.new_page(), []
    page.set_default_timeout(TIMEOUT_MS)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.wait_for_selector(f"#status.{status}")
    try:
        yield page
        # a connection that is lost, or a refused command, is an error to the browser, but not of the page
        expected = r"ERR_CONNECTION|ERR_EMPTY_RESPONSE|WebSocket connection|status of 401"
        assert [text for text in errors if not re.search(expected, text)] == []
    finally:
        context.close()


def select_tl(page, tl):
    """Find a TL by its name, and wait for its panel."""
    page.fill("#search", tl)
    page.keyboard.press("Enter")
    page.wait_for_selector("#tl-panel:visible")
