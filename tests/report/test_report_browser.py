"""The page in a real browser, where one is installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import make_images, make_record, write_run

from gradveil.report import build

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = make_record(
        [8.0 + 0.1 * v for v in range(24)],
        ranks=[5] * 24,
        defenses=["transformation-policy:policy=3-1-7+43-18-18", "gaussian-noise:std=0.001"],
        attack="inverting-gradients:steps=4800,tv_weight=0.0001",
        classes=["a-class-with-a-very-long-name-that-does-not-break-anywhere" * 2, "dog"],
    )
    cells = {"1": (make_record(), make_images()), "2": (long, make_images(24, channels=1, side=28))}
    return build(write_run(tmp_path_factory.mktemp("run"), cells))


@pytest.mark.parametrize("width", [320, 390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_works(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert page.evaluate("document.images.length") == 84

    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    after = page.evaluate(paper)
    assert page.inner_text("#theme") == ("Dark" if scheme == "dark" else "Light")
    assert brightness(after) > brightness(before) if scheme == "dark" else brightness(after) < brightness(before)
    page.click("#theme")
    assert page.evaluate(paper) == before

    assert messages == []
    assert {url.partition(":")[0] for url in requests} <= {"file", "data"}
    context.close()


def test_a_link_to_folded_settings_unfolds_them(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    assert not page.evaluate("document.getElementById('settings-2').open")
    page.click("#cell-2 .crumbs a[href='#settings-2']")
    page.wait_for_function("document.getElementById('settings-2').open")
    page.close()


def test_paper_is_always_light_and_wide_enough(browser: Any, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 720, "height": 1000}, color_scheme="dark")
    page.goto(page_file.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 600
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def brightness(colour: str) -> int:
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
