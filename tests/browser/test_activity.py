"""Adapters at run time, hit rates and times over time, who has read what, and how seldom plan books travel."""

import json
import os
import pathlib

from conftest import ADMIN_KEY, API_KEY, ROOT
from known_state import known_books, known_state
from page import KEYS, chat_answer

METRICS = """# HELP vllm:prefix_cache_queries_total Prompt tokens looked up in caches.
vllm:prefix_cache_queries_total{model_name="a\\"b",engine="0"} %d
vllm:prefix_cache_hits_total{model_name="a\\"b",engine="0"} %d
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 3
vllm:time_to_first_token_seconds_sum{engine="0"} %f
vllm:time_to_first_token_seconds_count{engine="0"} %d
droidspeak_share_hits_total{sender="root",receiver="law"} %d
droidspeak_share_tokens_reused_total{sender="root",receiver="law"} %d
"""
METRICS_SCRIPT = """
(() => {
  const realFetch = window.fetch;
  const texts = %s;
  window.fetch = (path, options) => String(path) === '/metrics'
      ? Promise.resolve(new Response(texts.length > 1 ? texts.shift() : texts[0])) : realFetch(path, options);
})();
"""


def rows(page, table):
    return page.script("""
        return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map((row) =>
            [...row.cells].map((cell) => cell.textContent))""", table)


def facts(page, element_id):
    return page.script("""
        return Object.fromEntries([...document.querySelectorAll(`#${arguments[0]} div`)].map((fact) =>
            [fact.querySelector('dt').textContent, fact.querySelector('dd').textContent]))""", element_id)


# Adapters


def adapter_folder():
    """Of the family's last adapter."""
    family = pathlib.Path(os.environ.get("FAMILY", ROOT / "models" / "smollm2" / "family.json"))
    return (family.parent / json.loads(family.read_text())["variants"][-1]["adapter"]).resolve()


def names(page):
    return [row[0] for row in rows(page, "variants")]


def test_adapters_are_loaded_and_unloaded_with_the_admin_key(server_maker, page):
    folder = adapter_folder()
    server = server_maker("--api-key", API_KEY, "--admin-key", ADMIN_KEY, "--adapter-root", folder.parent)
    page.is_error_expected = True
    page.open(server.url, "family")
    page.type("#api-key", API_KEY + KEYS.ENTER)
    page.wait(lambda: names(page), "the variants")
    before = names(page)
    page.type("#adapter-name", "again")
    page.type("#adapter-path", folder.name + KEYS.ENTER)
    page.wait(lambda: "admin key" in page.alert(), "the refusal")
    assert names(page) == before
    page.type("#admin-key", ADMIN_KEY + KEYS.TAB)
    page.one("#adapter-path").send_keys(KEYS.ENTER)
    page.wait(lambda: "again" in names(page), "the adapter", 60)
    assert page.alert() == "" and page.text("adapter-result") == "again was loaded."
    page.click("#tab-conversation")
    page.wait(lambda: page.all('#chat-variant option[value="again"]'), "the choice")
    page.select("#chat-variant", "again")
    page.click("#chat-settings summary")
    page.type("#chat-max-tokens", "4" + KEYS.TAB)
    assert page.say("Hello")["variant"] == "again"
    page.click("#tab-family")
    page.script("document.querySelector('[data-unload=again]').focus()")
    page.press(KEYS.ENTER)
    assert "again" in names(page) and "Press again" in page.one("[data-unload=again]").text
    page.press(KEYS.ENTER)
    page.wait(lambda: names(page) == before, "the adapter to go", 60)
    page.wait(lambda: page.text("adapter-result") == "again was unloaded.", "the result")
    assert not page.all('#chat-variant option[value="again"]')
    assert server.stop() == 0


def test_a_folder_that_is_none_is_named(server, page):
    page.is_error_expected = True
    page.open(server.url, "family")
    page.type("#adapter-name", "nothing")
    page.type("#adapter-path", "no/such/folder" + KEYS.ENTER)
    page.wait(lambda: "lora_path" in page.alert(), "the server's words")


def test_leaving_the_button_takes_the_question_back(server, page):
    page.show_state(known_state(), known_books())
    page.open(server.url, "family")
    page.click("[data-unload=law]")
    assert "Press again" in page.one("[data-unload=law]").text
    page.press(KEYS.TAB)
    assert page.one("[data-unload=law]").text == "Unload"
    assert page.all("[data-unload=root]") == []


# Activity


def test_rates_and_times_between_samples(server, page):
    texts = [METRICS % (1000, 100, 1.0, 4, 0, 0), METRICS % (3000, 1600, 1.5, 6, 2, 1000)]
    page.show_state(known_state(), known_books())
    page.run_first(METRICS_SCRIPT % json.dumps(texts))
    page.open(server.url, "activity")
    page.wait(lambda: rows(page, "samples")[0][1:] == ["2,000", "75.0 %", "50.0 %", "2", "250 ms"], "the second sample", 20)
    assert facts(page, "activity-totals") == {
        "Prompt tokens": "3,000", "Found in caches": "53.3 %", "From other variants": "33.3 %", "Mean time to first token": "250 ms"}
    assert rows(page, "pairs-shared") == [["law", "root", "2", "1,000"]]
    drawn = page.script("return Chart.getChart('hit-chart').data.datasets.map((series) => series.data.map((point) => point.y))")
    assert drawn == [[0.75], [0.5]]
    page.screenshot("activity")


def test_who_has_read_the_conversation(server, page):
    page.show_state(known_state(), known_books())
    page.answer_with(chat_answer("Nine."), chat_answer("Ten.", sender="root", plan="0,3,5", recomputed_layers=2, reused_tokens=640, cached_tokens=640),
                     chat_answer("Eleven."))
    page.open(server.url, "conversation")
    for name in ("root", "law", "root"):
        page.select("#chat-variant", name)
        page.say("When?")
    page.click("#tab-activity")
    page.wait(lambda: rows(page, "readers"), "the readers")
    assert rows(page, "readers") == [["root", "all of it", "912", "full prefill"],
                                     ["law", "up to turn 2 of 3", "912", "0,3,5 from root"],
                                     ["code", "nothing of it", "\u2013", "\u2013"]]
    page.wait(lambda: page.script("return Boolean(Chart.getChart('ttft-chart'))"), "the chart")
    labels = page.script("return Chart.getChart('ttft-chart').data.datasets.map((series) => series.label)")
    assert "turns here, shared" in labels
    found = page.script("return Chart.getChart('hit-chart').data.datasets.find((series) => series.label === 'turns here').data")
    assert [round(point["y"], 3) for point in found] == [0, round(640 / 900, 3), 0]
    assert not page.one("#hit-chart-empty").is_displayed()


def test_charts_without_data_say_so(server, page):
    page.show_state(known_state(), known_books())
    page.run_first(METRICS_SCRIPT % json.dumps([METRICS % (1000, 100, 1.0, 4, 0, 0)]))
    page.open(server.url, "activity")
    page.wait(lambda: page.one("#hit-chart-empty").is_displayed() and page.one("#ttft-chart-empty").is_displayed(), "the words")


def test_activity_of_the_server(server, page):
    page.open(server.url, "conversation")
    page.click("#chat-settings summary")
    page.type("#chat-max-tokens", "3" + KEYS.TAB)
    page.say("Hello")
    page.click("#tab-activity")
    page.wait(lambda: facts(page, "activity-totals"), "the totals")
    assert facts(page, "activity-totals")["Mean time to first token"].endswith("s")
    assert not page.one("#activity-problem").is_displayed()


def test_protected_metrics_are_asked_for_with_the_admin_key(server_maker, page):
    server = server_maker("--api-key", API_KEY, "--admin-key", ADMIN_KEY, "--protect-metrics")
    page.is_error_expected = True
    page.open(server.url, "activity")
    page.type("#api-key", API_KEY + KEYS.ENTER)
    page.wait(lambda: page.one("#activity-problem").is_displayed(), "the reason")
    assert "admin key" in page.text("activity-problem")
    page.click("#tab-family")
    page.type("#admin-key", ADMIN_KEY + KEYS.TAB)
    page.click("#tab-activity")
    page.wait(lambda: not page.one("#activity-problem").is_displayed() and facts(page, "activity-totals"), "the totals")
    assert server.stop() == 0


# Plan books


def test_plan_books_travel_once(server, page):
    page.run_first("""
        const original = window.fetch;
        window.paths = [];
        window.fetch = (path, options) => {
          window.paths.push(String(path));
          return original(path, options);
        };""")
    page.open(server.url, "family")
    page.wait(lambda: page.script("return paths.filter((path) => path.endsWith('/state')).length") >= 3, "three states", 20)
    assert page.script("return paths.filter((path) => path.endsWith('/plan_books')).length") == 1
    page.click("#tab-plans")
    page.wait(lambda: page.script("return paths.filter((path) => path.endsWith('/plan_books')).length") == 2, "the books again")
    page.wait(lambda: len(page.script("return performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/plan_books'))")) == 2, "its timing")
    first, again = page.script("""
        return performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/plan_books'))
            .map((entry) => [entry.transferSize, entry.decodedBodySize])""")
    assert again[1] == first[1] and again[0] <= 400, "a head without a body"
