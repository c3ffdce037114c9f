"""Conversations in Chromium: turns over several variants, what each shows, stop, retry, what is kept, and errors."""

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains

from known_state import known_books, known_state
from page import KEYS, chat_answer, chat_refusal

CONTEXT = "Read this. " + "The ferry to the islands leaves the outer pier at nine and comes back at five. " * 16
SHARED = {"sender": "root", "plan": "0,3,5", "translated": True, "reused_tokens": 640, "recomputed_layers": 2, "cached_tokens": 640}


def tab_to(page, element_id, most=60):
    """By the keyboard alone, from wherever the focus is."""
    for _ in range(most):
        if page.focused() == element_id:
            return
        ActionChains(page.browser).send_keys(KEYS.TAB).perform()
    raise AssertionError(f"{element_id} cannot be reached with the Tab key")


def set_number(page, element_id, value):
    tab_to(page, element_id)
    page.press(KEYS.CONTROL + "a")
    page.press(str(value))


def set_max_tokens(page, value):
    page.script("document.querySelector('#chat-settings summary').focus()")
    page.press(KEYS.ENTER)
    set_number(page, "chat-max-tokens", value)
    page.press(KEYS.TAB)


@pytest.fixture
def known(server, page):
    """Opens the page with a known state; chat requests get the given answers."""
    def open_page(*answers):
        page.show_state(known_state(), known_books())
        page.answer_with(*answers)
        page.open(server.url, "conversation")
        return page
    return open_page


# Turns


def test_ten_turns_over_three_variants_without_a_mouse(server, page):
    names = [variant["name"] for variant in server.state()["families"][0]["variants"]][:3]
    page.open(server.url, "conversation")
    set_max_tokens(page, 6)
    for number in range(10):
        tab_to(page, "chat-variant")
        page.press(KEYS.HOME, *[KEYS.ARROW_DOWN] * (number % len(names)))
        tab_to(page, "chat-question")
        ActionChains(page.browser).send_keys(f"{CONTEXT if number == 0 else ''} Question {number}: when?", KEYS.ENTER).perform()
        page.wait(lambda: len(page.turns()) == number + 1, "the next turn")
        page.wait_for_turn()
    turns = page.turns()
    assert page.alert() == ""
    assert [turn["state"] for turn in turns] == ["done"] * 10
    assert [turn["variant"] for turn in turns] == [names[number % len(names)] for number in range(10)]
    reused, lengths = zip(*[map(int, turn["Tokens reused"].replace(",", "").split(" of ")) for turn in turns])
    assert list(lengths) == sorted(set(lengths)), "every turn reads all before it"
    assert max(reused) >= 64 and all(part < whole for part, whole in zip(reused, lengths))
    assert all({"Plan", "Tokens looked at", "First token", "Full prefill", "Answer"} <= set(turn) for turn in turns)
    assert turns[0]["Full prefill"] == "this was one" and turns[0]["Plan"] == "full prefill"
    assert page.focused() == "chat-question"
    page.screenshot("conversation")


def test_every_turn_reads_all_before_it(known):
    page = known(chat_answer("Nine."), chat_answer("At five."))
    page.say("When does it leave?")
    page.select("#chat-variant", "code")
    page.say("And back?")
    first, second = page.chat_bodies()
    assert (first["model"], second["model"]) == ("root", "code")
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in second["messages"][1:]] == ["When does it leave?", "Nine.", "And back?"]


def test_settings_go_with_every_request_and_are_kept(server, known):
    page = known(chat_answer("Yes."))
    page.click("#chat-settings summary")
    page.paste("#chat-system", "Answer like a sailor.")
    for name, value in (("temperature", "0"), ("top-p", "0.5"), ("top-k", "7"), ("max-tokens", "33"), ("seed", "4")):
        page.type(f"#chat-{name}", value + KEYS.TAB)
    page.select("#chat-sharing", "off")
    page.say("Ready?")
    body = page.chat_bodies()[0]
    assert body["messages"][0] == {"role": "system", "content": "Answer like a sailor."}
    wanted = {"temperature": 0, "top_p": 0.5, "top_k": 7, "max_tokens": 33, "seed": 4, "sharing": "off"}
    assert {name: body[name] for name in wanted} == wanted
    assert "min_p" not in body and "repetition_penalty" not in body
    page.open(server.url, "conversation")
    assert page.one("#chat-top-k").get_attribute("value") == "7"


def test_a_setting_out_of_range_is_not_sent(known):
    page = known(chat_answer("Yes."))
    page.click("#chat-settings summary")
    page.type("#chat-temperature", "3")
    page.click("#chat-settings summary")
    page.paste("#chat-question", "Ready?")
    page.one("#chat-question").send_keys(KEYS.ENTER)
    assert page.turns() == [] and page.chat_bodies() == []
    assert page.one("#chat-temperature").is_displayed(), "the field in question is shown"


# What a turn shows


def test_a_shared_turn_shows_its_plan_and_what_the_book_predicts(known):
    page = known(chat_answer("Nine.", ttft_ms=100, **SHARED))
    page.select("#chat-variant", "law")
    turn = page.say("When?")
    assert turn["Plan"] == "0,3,5 translated from root"
    assert turn["Tokens reused"] == "640 of 900"
    assert (turn["Layers recomputed"], turn["Tokens looked at"], turn["First token"]) == ("2", "0", "100 ms")
    assert turn["Full prefill"] == "43 % of it predicted by the plan book (at 640 tokens)"


def test_the_book_predicts_only_what_it_has_measured(known):
    page = known(chat_answer("Nine.", **SHARED | {"recomputed_layers": 0}), chat_answer("Ten.", **SHARED | {"looked_at_tokens": 32}))
    page.select("#chat-variant", "law")
    kept = page.say("When?")
    assert (kept["Plan"], kept["Full prefill"]) == ("0,3,5 translated from root, kept from before", "not measured")
    looked = page.say("When?")
    assert (looked["Tokens looked at"], looked["Full prefill"]) == ("32", "not measured")


def test_full_prefill_is_measured_on_demand(known):
    page = known(chat_answer("Nine.", ttft_ms=100, **SHARED), chat_answer("N", ttft_ms=400))
    page.select("#chat-variant", "law")
    page.say("When?")
    page.script("document.querySelector('[data-action=measure]').focus()")
    page.press(KEYS.ENTER)
    page.wait(lambda: len(page.chat_bodies()) == 2, "the measurement")
    page.wait_for_turn()
    assert page.turns()[0]["Full prefill"] == "400 ms measured: 4.0\u00d7 sooner"
    asked, measured = page.chat_bodies()
    assert measured["messages"] == asked["messages"] and measured["model"] == "law"
    assert measured["sharing"] == "off" and measured["max_tokens"] == 1 and measured["cache_salt"]
    assert not page.one("[data-action=measure]").is_displayed()


def test_full_prefill_is_measured_after_each_turn_where_wanted(known):
    page = known(chat_answer("Nine.", ttft_ms=200, cached_tokens=640), chat_answer("N", ttft_ms=100))
    page.click("#chat-settings summary")
    page.click("#chat-measures")
    turn = page.say("When?")
    assert turn["Plan"] == "own prefix cache" and turn["Tokens reused"] == "640 of 900"
    assert turn["Full prefill"] == "100 ms measured: 2.0\u00d7 later"


def test_nothing_is_said_about_full_prefill_that_is_not_known(known):
    page = known(chat_answer("Nine.", cached_tokens=640), chat_answer("Ten."))
    assert page.say("When?")["Full prefill"] == "not measured"
    assert page.say("When?")["Full prefill"] == "this was one"


def test_tokens_are_those_of_the_server(server, page):
    text = "Vessen's harbour \u2014 86,000 crowns; Kr\u00e4n\u00f8y?"
    page.open(server.url)
    page.paste("#context", text)
    page.wait(lambda: "tokens" in page.text("context-size"), "the count")
    assert f", {server.count_tokens(text)} of " in page.text("context-size")
    page.click("#tab-conversation")
    page.paste("#chat-question", text)
    page.wait(lambda: "tokens" in page.text("chat-size"), "the count")
    assert int(page.text("chat-size").split()[0]) > server.count_tokens(text)
    page.paste("#chat-question", "word " * 40000)
    page.wait(lambda: "Longer than the context" in page.text("chat-size"), "the warning")
    page.is_error_expected = True  # the tokenizer's 400


def test_the_answer_is_announced_once_it_is_there(known):
    page = known(chat_answer("**Nine** in the morning."))
    page.say("When?")
    assert page.text("announcer") == "root: Nine in the morning."
    assert page.all('[role="log"] li.turn h3')
    assert page.one(".turn .answer").get_attribute("aria-busy") == "false"


# Stop and retry


def test_stop_and_retry(server, page):
    page.open(server.url, "conversation")
    set_max_tokens(page, 1500)
    tab_to(page, "chat-question")
    ActionChains(page.browser).send_keys("Tell me a very long story about the sea and its many animals.", KEYS.ENTER).perform()
    page.wait(lambda: page.turns()[0]["status"] == "answering", "the first words")
    page.press(KEYS.ESCAPE)
    page.wait_for_turn(10)
    stopped = page.turns()[0]
    assert stopped["state"] == "stopped" and stopped["answer"]
    assert page.alert() == ""
    page.wait(lambda: server.state()["queue"] == {"running": 0, "waiting": 0}, "the server to stop too", 10)
    page.script("document.getElementById('chat-max-tokens').focus()")
    set_number(page, "chat-max-tokens", 5)
    page.script("document.querySelector('[data-action=retry]').focus()")
    page.press(KEYS.ENTER)
    page.wait_for_turn()
    turns = page.turns()
    assert [turn["state"] for turn in turns] == ["done"]
    assert turns[0]["question"] == stopped["question"] and turns[0]["Answer"] in ("5 tokens", "4 tokens", "3 tokens", "2 tokens", "1 token")


def test_retry_takes_the_variant_that_is_chosen_now(known):
    page = known(chat_answer("Nine."), chat_answer("Ten."))
    page.say("When?")
    page.select("#chat-variant", "law")
    page.click("[data-action=retry]")
    page.wait(lambda: page.turns()[0]["answer"] == "Ten.", "the other answer")
    page.wait_for_turn()
    assert [turn["variant"] for turn in page.turns()] == ["law"]
    assert len(page.chat_bodies()[1]["messages"]) == 2, "without the first answer"


# What is kept


def test_a_reload_keeps_the_conversation_and_deleting_it_does_not(server, known):
    page = known(chat_answer("Nine.", **SHARED))
    page.say("When?")
    before = page.turns()
    page.open(server.url, "conversation")
    assert page.turns() == before
    page.click("#chat-clear")
    assert page.turns() == []
    assert page.one("#chat-empty").is_displayed() and page.focused() == "chat-question"
    page.open(server.url, "conversation")
    assert page.turns() == []
    kept = json.loads(page.script("return localStorage.getItem('droidspeak.conversation')") or "{}")
    assert kept.get("turns", []) == []


@pytest.mark.parametrize("kept", ["{", "null", "[]", '{"turns": 3}', '{"settings": [], "turns": [null, 1, {"question": 5}]}',
                                  '{"turns": [{"question": "a", "answer": "b", "variant": "base", "state": "done"}]}',
                                  '{"settings": {"temperature": "hot", "system": 4}}'])
def test_what_else_stands_in_the_storage_does_no_harm(server, known, kept):
    page = known(chat_answer("Nine."))
    page.script("localStorage.setItem('droidspeak.conversation', arguments[0])", kept)
    page.run_first("window.addEventListener('error', () => { window.hasFailed = true; })")
    page.open(server.url, "conversation")
    assert page.turns() == []
    assert page.one("#chat-temperature").get_attribute("value") == "0.6"
    assert page.say("When?")["state"] == "done"
    assert not page.script("return window.hasFailed")


# Errors


def test_a_full_queue_is_shown_and_the_turn_left_out(known):
    page = known(chat_refusal(429, "The queue is full.", **{"Retry-After": "3"}), chat_answer("Nine."))
    page.is_error_expected = True
    turn = page.say("When?")
    assert turn["state"] == "failed" and "not part of the conversation" in turn["status"]
    assert "The queue is full. Try again in 3 s." in turn["answer"]
    assert "Try again in 3 s." in page.alert()
    page.say("Where?")
    assert page.alert() == ""
    assert [message["content"] for message in page.chat_bodies()[1]["messages"][1:]] == ["Where?"]


def test_a_failed_turn_can_be_retried(known):
    page = known(chat_refusal(503, "The server is shutting down."), chat_answer("Nine."))
    page.is_error_expected = True
    page.say("When?")
    page.click("[data-action=retry]")
    page.wait(lambda: page.turns()[0]["state"] == "done", "the answer")
    assert page.turns()[0]["answer"] == "Nine."


def test_an_answer_that_breaks_off_says_so(known):
    broken = chat_answer("Nine in the morning.")
    page = known(broken | {"body": broken["body"][:120]})
    turn = page.say("When?")
    assert turn["state"] == "failed" and "broke off" in turn["answer"]
    assert "broke off" in page.alert()
