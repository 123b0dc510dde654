"""The page of `serve` in a headless Chromium: keyboard, clipboard, resize, reload, close, console.

Needs the dependency group `browser`, and a Chromium of the system or of Playwright.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.cli.commands.test_serve import served
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment

playwright = pytest.importorskip("playwright.sync_api", reason="the dependency group browser is not installed")
pytestmark = pytest.mark.slow

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAWN_WITHIN_S = 60.0
SIZE = {"width": 1100, "height": 700}


class Page:
    """The page, and all that passed between it and the server."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.console: list[str] = []
        self.sent: list[list[Any]] = []
        self.drawn = b""
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("websocket", self._listen)

    def _listen(self, socket: Any) -> None:
        socket.on("framesent", lambda text: self.sent.append(json.loads(text)))
        socket.on("framereceived", self._draw)

    def _draw(self, frame: bytes | str) -> None:
        if isinstance(frame, bytes):
            self.drawn += frame

    @property
    def text(self) -> str:
        """Return what was drawn, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn.decode(errors="replace"))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(int(DRAWN_WITHIN_S * 10)):
            if condition():
                return
            self.page.wait_for_timeout(100)
        pytest.fail(f"{what}; sent {self.sent[-5:]}, drawn {self.text[-2000:]!r}, console {self.console}")

    def press(self, key: str, shows: str) -> None:
        """Press a key, and wait until the dashboard has drawn a text."""
        self.drawn = b""
        self.page.keyboard.press(key)
        self.until(lambda: shows in self.text, f"{key} does not show {shows!r}")

    def until_open(self) -> None:
        """Wait until the end of the recording, after which nothing but keys changes the screen."""
        self.until(lambda: "run done" in self.text, "the dashboard does not open")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    with playwright.sync_playwright() as driver:
        try:
            chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {error}")
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Process, str]]:
    folder = tmp_path_factory.mktemp("served")
    write_segment(folder / "over", 1, recording(example_run(rounds=3)))
    with served(folder, "over") as (process, port, _):
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}"


@pytest.fixture
def opened(browser: Any, server: tuple[psutil.Process, str]) -> Iterator[Page]:
    context = browser.new_context(viewport=SIZE, permissions=["clipboard-read", "clipboard-write"])
    page = Page(context.new_page())
    page.page.goto(server[1])
    page.until_open()
    yield page
    context.close()
    assert page.console == []


def test_page_takes_the_keyboard_on_load(opened: Page) -> None:
    opened.press("2", "decisions")
    opened.press("Control+p", "Search for commands")
    opened.press("Escape", "decisions")
    opened.press("p", "This page only shows")


def test_ctrl_c_copies_selected_text_and_does_not_close(opened: Page) -> None:
    opened.press("Control+c", "copies selected text")
    mouse, keyboard = opened.page.mouse, opened.page.keyboard
    keyboard.down("Shift")
    mouse.move(5, 12)
    mouse.down()
    mouse.move(200, 12, steps=5)
    mouse.up()
    keyboard.up("Shift")
    sent = len(opened.sent)
    keyboard.press("Control+c")
    opened.until(lambda: bool(opened.page.evaluate("navigator.clipboard.readText()").strip()), "nothing was copied")
    assert ["stdin", "\x03"] not in opened.sent[sent:]
    opened.press("2", "decisions")


def test_resize_redraws_the_dashboard(opened: Page) -> None:
    sizes = [message[1] for message in opened.sent if message[0] == "resize"]
    opened.drawn = b""
    opened.page.set_viewport_size({"width": 1500, "height": 900})
    opened.until(lambda: any(m[0] == "resize" and m[1] not in sizes for m in opened.sent), "no new size")
    opened.until_open()


def test_reload_opens_a_new_dashboard_and_ends_the_old_one(opened: Page, server: tuple[psutil.Process, str]) -> None:
    old = set(server[0].children(recursive=True))
    opened.drawn = b""
    opened.page.reload()
    opened.until_open()
    opened.press("2", "decisions")
    opened.until(lambda: not any(process.is_running() for process in old), "the old dashboard runs on")


def test_closed_dashboard_can_be_reopened_by_key(opened: Page) -> None:
    opened.page.keyboard.press("q")
    opened.page.wait_for_selector("#reopen:focus", timeout=DRAWN_WITHIN_S * 1000)
    opened.drawn = b""
    opened.page.keyboard.press("Enter")
    opened.until_open()
    opened.press("2", "decisions")


def test_closed_page_ends_its_dashboard(browser: Any, server: tuple[psutil.Process, str]) -> None:
    page = Page(browser.new_page(viewport=SIZE))
    page.page.goto(server[1])
    page.until_open()
    dashboards = server[0].children(recursive=True)
    assert dashboards
    page.page.close()
    _, alive = psutil.wait_procs(dashboards, DRAWN_WITHIN_S)
    assert not alive
    assert page.console == []
