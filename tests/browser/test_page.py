"""The web page in Chromium: every view, the keyboard, errors, both themes and a narrow screen."""

import pytest

from conftest import API_KEY
from known_state import known_books, known_state
from page import KEYS, chat_answer

CONTEXT = "The ferry: " + "The ferry to the islands leaves the outer pier at nine and comes back at five. " * 12


def ask(page, max_tokens="6"):
    page.paste("#context", CONTEXT)
    page.type("#question", "When does the ferry leave?")
    page.type("#max-tokens", max_tokens)


LONG_ANSWER = """## The harbour
It was **dug by hand** between `1871` and *1884*. See <https://example.org/harbour>.

- granite from Holm
- forty boats in summer
  1. nine in winter

| part | height |
|---|---|
| lighthouse | 23 m |

```python
def crowns(share): return 86000 * share  # a line that is rather longer than a narrow screen is wide
```
> The council will recommend the new lamp."""


def milliseconds(text):
    number, unit = text.split()
    return float(number) * {"ms": 1, "s": 1000}[unit]


# Playground


def test_full_prefill_streams_an_answer(server, page):
    page.open(server.url)
    page.is_error_expected = not server.plan_books()
    ask(page)
    page.run_playground()
    full = page.arm("full")
    assert full["state"] == "done"
    assert full["answer"]
    assert full["Plan"] == "full"
    assert full["Tokens reused"].startswith("0 of ")
    assert milliseconds(full["ttft"]) > 0
    assert "tokens in" in page.text("sender-step")


def test_three_ways_side_by_side(server, page):
    books = server.plan_books()
    if not books:
        pytest.skip("the family has no plan book")
    page.open(server.url)
    page.click("#example")
    page.type("#max-tokens", "8")
    page.run_playground()
    full, reuse, shared = (page.arm(arm) for arm in ("full", "reuse", "droidspeak"))
    assert page.alert() == ""
    assert {full["state"], reuse["state"], shared["state"]} == {"done"}
    assert full["answer"] and reuse["answer"] and shared["answer"]
    assert reuse["Plan"] == "reuse"
    assert int(reuse["Tokens reused"].split()[0]) >= 384
    assert full["Tokens reused"].startswith("0 of ") and min(milliseconds(arm["ttft"]) for arm in (full, reuse, shared)) > 0
    assert page.one('.bar[data-arm="droidspeak"] .pill').text.endswith("\u00d7")
    assert "DroidSpeak" in page.text("verdict")
    assert [item.get_attribute("aria-busy") for item in page.all(".answer")] == ["false"] * 3
    page.screenshot("playground")


def test_stop_ends_a_run(server, page):
    page.open(server.url)
    ask(page, "1000")
    page.click("#run")
    assert not page.one("#run").is_enabled()
    page.click("#stop")
    page.wait(lambda: page.one("#run").is_enabled(), "the run to stop", 10)
    assert page.arm("reuse")["state"] == "idle"
    assert page.alert() == ""
    page.wait(lambda: server.state()["queue"] == {"running": 0, "waiting": 0}, "the server to stop too", 10)


def test_pair_without_plan_book_is_pointed_out(server, page):
    page.show_state(known_state(), known_books())
    page.open(server.url)
    assert (page.one("#sender").get_attribute("value"), page.one("#receiver").get_attribute("value")) == ("root", "law")
    assert not page.one("#pair-note").is_displayed()
    page.select("#sender", "law")
    page.select("#receiver", "code")
    assert "law \u2192 code" in page.text("pair-note")


def test_unknown_model_is_shown_with_the_servers_words(server, page):
    page.show_state(known_state(), known_books())  # its models are not the server's
    page.open(server.url)
    page.is_error_expected = True
    ask(page)
    page.run_playground()
    assert "root" in page.alert()
    assert page.one("#alert").get_attribute("role") == "alert"
    page.click("#alert-close")
    assert page.alert() == ""


def test_text_is_never_taken_as_markup(server, page):
    state = known_state()
    state["families"][0]["name"] = "<img src=x onerror=alert(1)>"
    page.show_state(state, known_books())
    page.open(server.url, "family")
    page.wait(lambda: page.text("family-name").startswith("<img"), "the name as text")
    assert page.all("#family-name img") == []


# Family


def test_family_shows_the_servers_variants_and_tiers(server, page):
    page.open(server.url, "family")
    page.wait(lambda: page.all("#variants tbody tr"), "variants")
    names = [item.text for item in page.all("#variants tbody th")]
    assert names == [variant["name"] for variant in server.state()["families"][0]["variants"]]
    assert [item.get_attribute("data-tier") for item in page.all(".tier")] == ["host", "disk"]
    assert len(page.all('[role="meter"]')) == 3


def test_family_shows_load_and_usage(server, page):
    page.show_state(known_state(), known_books())
    page.open(server.url, "family")
    page.wait(lambda: page.all(".tile"), "the load")
    assert page.one('[data-tile="running"] .big').text == "3"
    assert page.one('[data-tile="waiting"] .big').text == "2"
    assert page.one('[data-tile="kv blocks"] [role="meter"]').get_attribute("aria-valuenow") == "25"
    assert page.one('[data-tier="host"] [role="meter"]').get_attribute("aria-valuenow") == "75"
    assert "not in use" in page.one('[data-tier="disk"]').text
    assert "root, code" in page.one("#variants").text
    page.screenshot("family")


def test_tiers_as_a_list_with_their_links(server, page):
    state = known_state()
    caches = state["caches"]
    host = caches["tiers"][0] | {"misses": 4, "links": []}
    link = {"address": "10.0.0.7:9000", "up": False, "round_trip_ms": 1.5, "bytes_per_second": 1 << 30, "queued_bytes": 0, "failures": 2}
    peer = host | {"name": "peer", "capacity_bytes": 0, "bytes": 0, "links": [link, link | {"up": True, "round_trip_ms": 0}]}
    page.show_state(state | {"caches": caches | {"tiers": [host, peer]}}, known_books())
    page.open(server.url, "family")
    page.wait(lambda: page.all(".tier"), "the tiers")
    assert [item.get_attribute("data-tier") for item in page.all(".tier")] == ["host", "peer", "disk"]
    assert "Misses\n4" in page.one('[data-tier="host"]').text and "not in use" in page.one('[data-tier="disk"]').text
    assert [item.text for item in page.all(".links li")] == [
        "10.0.0.7:9000 DOWN, 1.5 ms round trip, 1.0 GiB/s, 2 failures",
        "10.0.0.7:9000 up, round trip not measured, 1.0 GiB/s, 2 failures"]


def test_family_follows_the_server_only_while_shown(server, page):
    page.run_first("""
        const original = window.fetch;
        window.numStates = 0;
        window.fetch = (path, options) => {
          if (String(path).endsWith('state')) ++window.numStates;
          return original(path, options);
        };""")
    page.open(server.url, "family")
    first = page.script("return numStates")
    page.wait(lambda: page.script("return numStates") > first, "a second state", 10)
    page.click("#tab-plans")
    page.wait(lambda: not page.one("#view-family").is_displayed(), "the other view")
    before = page.script("return numStates")
    page.script("window.isOver = false; setTimeout(() => { isOver = true; }, 2500)")
    page.wait(lambda: page.script("return isOver"), "more than one interval", 10)
    assert page.script("return numStates") <= before + 1


# Plan books


@pytest.fixture
def plans(server, page):
    """With the pair that auto shares."""
    page.show_state(known_state(), known_books())
    page.open(server.url, "plans")
    page.wait(lambda: page.all("#heat rect"), "the heat map")
    page.select("#pair", "root \u2192 law")
    return page


def test_frontier_marks_the_plan_that_auto_chooses(plans):
    chosen = plans.all("#frontier tr.chosen")
    assert len(chosen) == 1
    assert "0,3,5" in chosen[0].text and "auto" in chosen[0].text
    assert "0,3,5 translated" in plans.text("book-facts")
    assert len(plans.all("#frontier tbody tr")) == 3
    plans.select("#pair", "code \u2192 law")
    assert plans.all("#frontier tr.chosen") == []
    assert "full prefill" in plans.text("book-facts")


def test_heat_map_switches_between_raw_and_translated(plans):
    assert len(plans.all("#heat rect")) == 21
    assert plans.one('input[value="translated"]').is_selected()
    assert "KL 0.0800" in plans.text("heat-readout") and "auto" in plans.text("heat-readout")
    plans.script("document.querySelector('input[value=raw]').click()")
    assert len(plans.all("#heat rect")) == 21
    assert plans.all("#heat rect.chosen") == []
    assert "0.250" in plans.text("heat-table")


def test_heat_map_has_keys_and_a_table(plans):
    plans.script("document.querySelector('#heat svg').focus()")
    plans.press(KEYS.ARROW_LEFT)
    assert plans.text("heat-readout").startswith("layers 2 to 4 recomputed (3)")
    plans.press(KEYS.ARROW_UP)
    assert plans.text("heat-readout").startswith("layers 2 to 5 recomputed (4)")
    plans.click("#view-plans details summary")
    assert len(plans.all("#heat-table tbody tr")) == 21


def test_charts_are_drawn(plans):
    assert plans.script("return Chart.getChart('pareto').data.datasets.map((series) => series.data.length)") == [1, 1, 1]
    assert len(plans.all("#sensitivity rect")) == 6
    assert "layer 5" in plans.one("#sensitivity svg").get_attribute("aria-label")
    plans.screenshot("plan_books")


def test_plan_books_of_the_server(server, page):
    page.open(server.url, "plans")
    books = server.plan_books()
    if books:
        page.wait(lambda: page.all("#frontier tbody tr"), "the frontier")
        assert len(page.all("#frontier tbody tr")) == len(books[0]["frontier"])
        assert len(page.all("#pair option")) == len(books)
    else:
        page.wait(lambda: page.one("#plans-empty").is_displayed(), "the empty view")


# The frame


def test_tabs_by_keyboard(server, page):
    page.open(server.url)
    page.script("document.getElementById('tab-playground').focus()")
    for key, tab in ((KEYS.ARROW_RIGHT, "activity"), (KEYS.ARROW_RIGHT, "family"), (KEYS.ARROW_RIGHT, "plans"),
                     (KEYS.ARROW_RIGHT, "conversation"), (KEYS.ARROW_LEFT, "plans"), (KEYS.HOME, "conversation"), (KEYS.END, "plans")):
        page.press(key)
        assert page.focused() == f"tab-{tab}"
        assert [item.get_attribute("id") for item in page.all('[aria-selected="true"]')] == [f"tab-{tab}"]
        assert [item.get_attribute("id") for item in page.all('[role="tabpanel"]') if item.is_displayed()] == [f"view-{tab}"]
    assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_every_control_has_a_name(server, page):
    page.open(server.url)
    nameless = page.script("""
        return [...document.querySelectorAll('button, input, select, textarea')].filter((control) =>
            !control.labels?.length && !control.textContent.trim() && !control.getAttribute('aria-label')
        ).map((control) => control.outerHTML)""")
    assert nameless == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(server, page, theme):
    page.emulate(theme)
    page.open(server.url)
    brightness = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    is_light = page.script(brightness) > 380
    assert is_light == (theme == "light")
    page.click("#theme")
    assert (page.script(brightness) > 380) != is_light
    page.open(server.url)  # remembered
    assert (page.script(brightness) > 380) != is_light


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["conversation", "playground", "activity", "family", "plans"])
def test_nothing_is_wider_than_a_narrow_screen(server, page, view, theme):
    page.show_state(known_state(), known_books())
    page.answer_with(chat_answer(LONG_ANSWER, cached_tokens=640, sender="root", plan="0,3,5", translated=True, reused_tokens=640, recomputed_layers=2))
    page.emulate(theme)
    page.resize(360, 740)
    page.open(server.url, "conversation")
    page.select("#chat-variant", "law")
    page.say("What does the harbour cost?")
    page.open(server.url, view)
    assert page.script("return document.documentElement.scrollWidth") <= 360
    assert page.one("#health").is_displayed() and page.one("#health").size["width"] > 40  # a word, not a colour
    page.screenshot(f"narrow_{theme}_{view}")
    page.resize(1280, 1000)
    page.screenshot(f"wide_{theme}_{view}")


def test_nothing_comes_from_elsewhere(server, page):
    page.open(server.url, "plans")
    loaded = page.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded and all(name.startswith((server.url, "data:")) for name in loaded)


# A server with a key, which then goes away


def test_key_and_lost_server(server_maker, page):
    server = server_maker("--api-key", API_KEY)
    page.is_error_expected = True
    page.open(server.url)
    assert page.text("health") == "key needed"
    assert "Enter the API key at the top of the page." in page.alert()
    page.type("#api-key", API_KEY + KEYS.ENTER)
    page.wait(lambda: page.text("health") == "healthy", "the state with the key")
    assert page.alert() == ""
    assert page.all("#receiver option")
    page.click("#tab-conversation")
    assert page.say("Hello")["state"] == "done"
    page.click("#tab-playground")
    assert server.stop() == 0
    ask(page)
    page.run_playground()
    assert "cannot be reached" in page.alert()
    page.click("#tab-conversation")
    turn = page.say("Are you still there?")
    assert turn["state"] == "failed" and "cannot be reached" in turn["answer"]
    page.wait(lambda: page.text("health") == "offline", "the lost server at the top")
