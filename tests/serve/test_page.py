"""The chat page in a real browser: headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from serve_fake_engine import FakeEngine
from serve_running import Running

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 20_000
TEXT = "Sample 0 at temperature 0.8: alpha beta gamma, naïve 🙂 end."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium is installed: none of {', '.join(NAMES)} is on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    """The page, just opened. At the end: it called nobody else, and the browser had no complaint."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    expect.set_options(timeout=TIMEOUT_MS)
    complaints: list[str] = []
    called: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: called.append(request.url))
    page.goto(server.url)
    yield page
    context.close()
    assert complaints == []
    assert all(url.startswith(server.url) for url in called)


def ask(page: Page, text: str = "Hello!") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Any:
    return page.get_by_label("Answer", exact=True).locator(".body")


def test_send_stream_and_read(page: Page, engine: FakeEngine) -> None:
    expect(page.locator("#model")).to_have_text("fake")
    engine.hold()
    ask(page)
    expect(page.get_by_label("You", exact=True)).to_have_text("Hello!")
    engine.allow(4)
    expect(answers(page)).to_have_text("Sample 0 at")  # shown before it is complete
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    engine.allow()
    expect(answers(page)).to_have_text(TEXT)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    stats = page.locator(".foot span").last
    expect(stats).to_contain_text("tokens/s")
    expect(stats).to_contain_text("0 from the cache")
    page.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == TEXT


def test_a_conversation_goes_on(page: Page, engine: FakeEngine) -> None:
    ask(page, "One?")
    expect(answers(page)).to_have_text(TEXT)
    ask(page, "Two?")
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last).to_have_text(TEXT)
    prompt = engine.tokenizer.detokenize(engine.seen[-1].prompt_tokens)
    assert [prompt.count(part) for part in ("One?", TEXT, "Two?")] == [1, 1, 1]


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop(page: Page, engine: FakeEngine, how: str) -> None:
    engine.hold()
    ask(page)
    engine.allow(4)
    expect(answers(page)).to_have_text("Sample 0 at")
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    engine.wait_until(lambda now: now.n_active == 0)  # also at the server
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(answers(page)).to_have_text("Sample 0 at")
    expect(page.locator(".foot span").last).to_contain_text("stopped")


def test_stop_before_anything_came(page: Page, engine: FakeEngine) -> None:
    engine.hold()
    ask(page)
    engine.wait_until(lambda now: now.n_queued == 1)
    page.keyboard.press("Escape")
    engine.wait_until(lambda now: now.n_queued == 0)
    expect(answers(page)).to_have_count(0)
    engine.allow()
    page.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text(TEXT)


def test_regenerate(page: Page, engine: FakeEngine) -> None:
    ask(page)
    expect(answers(page)).to_have_text(TEXT)
    engine.reply = lambda request, sample: "Another."
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_have_text("Another.")
    assert engine.seen[0].prompt_tokens == engine.seen[1].prompt_tokens


def test_conversations_survive_a_reload(page: Page, engine: FakeEngine) -> None:
    ask(page, "The first")
    expect(answers(page)).to_have_text(TEXT)
    page.get_by_role("button", name="New chat").first.click()
    engine.hold()
    ask(page, "The second")
    engine.allow(4)
    expect(answers(page)).to_have_text("Sample 0 at")
    page.reload()  # in the middle of an answer, which the server then gives up
    engine.wait_until(lambda now: now.n_active == 0)
    engine.allow()
    expect(page.get_by_label("You", exact=True)).to_have_text("The second")
    expect(answers(page)).to_have_text("Sample 0 at")
    page.get_by_role("button", name="The first", exact=True).click()
    expect(answers(page)).to_have_text(TEXT)
    page.get_by_role("button", name="Delete The first").click()
    page.reload()
    expect(page.locator("#chat-list li")).to_have_count(1)
    expect(page.get_by_label("You", exact=True)).to_have_text("The second")


def test_parameters(page: Page, engine: FakeEngine) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Most tokens").fill("3")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_role("button", name="Close").click()
    page.reload()
    ask(page)
    expect(answers(page)).to_have_text("Sample 0")
    (request,) = engine.seen
    assert (request.sampling.temperature, request.max_tokens, request.sampling.seed) == (0.25, 3, 7)
    assert "Be brief." in engine.tokenizer.detokenize(request.prompt_tokens)


def test_token_probabilities(page: Page, engine: FakeEngine) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show each token's probability").check()
    page.get_by_role("button", name="Close").click()
    ask(page)
    expect(answers(page)).to_have_text(TEXT)
    page.locator(".token", has_text="alpha").hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text('" alpha"')
    expect(tip).to_contain_text("%")
    assert tip.inner_text().count("\n") == 4  # the token and its alternatives


def test_what_a_model_writes_is_text(page: Page, engine: FakeEngine) -> None:
    evil = "<script>document.title = 'x'</script> <img src=/x onerror=alert(1)> [a](javascript:alert(1))"
    engine.reply = lambda request, sample: f"{evil}\n\n```html\n{evil}\n```\n\n# {evil}\n\n`{evil}` **{evil}**"
    ask(page, evil)
    expect(answers(page).locator("pre code")).to_have_text(evil)
    expect(answers(page).locator("strong")).to_have_text(evil)
    expect(answers(page).locator("h3")).to_have_text(evil)
    expect(answers(page).locator("p").first).to_have_text(evil)
    assert page.locator("#messages :is(img, script, a)").count() == 0
    assert page.title() == "minfer"


def test_thoughts_are_folded(page: Page, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: "<think>Hmm.</think>Yes."
    ask(page)
    expect(answers(page)).to_have_text("Yes.")
    expect(page.get_by_text("Hmm.")).to_be_hidden()
    page.get_by_text("Thoughts").click()
    expect(page.get_by_text("Hmm.")).to_be_visible()


def test_on_a_phone_by_keyboard_and_in_the_dark(page: Page, engine: FakeEngine) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.emulate_media(color_scheme="dark")
    expect(page.get_by_role("navigation")).to_be_hidden()
    page.get_by_role("button", name="Chats").press("Enter")
    expect(page.get_by_role("navigation")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("navigation")).to_be_hidden()
    ask(page, "word " * 200)
    expect(answers(page)).to_have_text(TEXT)
    assert page.evaluate("document.activeElement.id") == "prompt"  # ready for the next
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_an_error_is_shown(page: Page, engine: FakeEngine) -> None:
    page.on("console", lambda message: None)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("100000")
    page.get_by_role("button", name="Close").click()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=_error_event()))
    ask(page)
    expect(page.get_by_role("alert")).to_have_text("the context has 4096 positions")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def _error_event() -> str:
    """An error in a stream: one with a status would be a complaint in the browser's console."""
    return 'data: {"error": {"message": "the context has 4096 positions", "code": "context_length_exceeded"}}\n\n'
