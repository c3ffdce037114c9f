"""The web page as a person uses it, on top of selenium."""

import json
import os
import pathlib

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

KEYS = Keys
# Answers calls for these paths with given JSON, so that a view shows known numbers.
FIXED_SCRIPT = """
(() => {
  const realFetch = window.fetch;
  const fixed = %s;
  window.fetch = (path, options) => String(path) in fixed
      ? Promise.resolve(new Response(JSON.stringify(fixed[path]), {headers: {'Content-Type': 'application/json'}}))
      : realFetch(path, options);
})();
"""
# Answers each chat request with the next of the given ones, the last again and again; `chatBodies` has the requests.
CHAT_SCRIPT = """
(() => {
  const realFetch = window.fetch;
  const answers = %s;
  window.chatBodies = [];
  window.fetch = (path, options) => {
    if (String(path) !== '/v1/chat/completions') return realFetch(path, options);
    window.chatBodies.push(JSON.parse(options.body));
    const {status, headers, body} = answers.length > 1 ? answers.shift() : answers[0];
    return Promise.resolve(new Response(body, {status, headers}));
  };
})();
"""
REPORT = {"sender": None, "plan": "full", "translated": False, "reused_tokens": 0, "recomputed_layers": 0,
          "looked_at_tokens": 0, "ttft_ms": 100.0}


def chat_answer(text, cached_tokens=0, **report):
    """A streamed answer, cut into pieces of seven characters."""
    pieces = [text[begin:begin + 7] for begin in range(0, len(text), 7)]
    events = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces] + [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    usage = {"prompt_tokens": 900, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": cached_tokens}}
    events.append({"choices": [], "usage": usage, "droidspeak": REPORT | report})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return {"status": 200, "headers": {"Content-Type": "text/event-stream"}, "body": body}


def chat_refusal(status, message, **headers):
    return {"status": status, "headers": headers, "body": json.dumps({"error": {"message": message}})}


class Page:
    def __init__(self, browser):
        self.browser = browser
        self.scripts = []
        self.is_error_expected = False
        self.emulate("light")
        self.resize(1280, 1000)

    def open(self, url, view="playground"):
        self.browser.get("about:blank")
        self.browser.get(f"{url}/#{view}")
        self.wait(lambda: self.text("health") != "connecting", "the first state")

    def show_state(self, state, books=()):
        """From the next open() on, the views get this state and these plan books instead of the server's."""
        self.fix({"/v1/droidspeak/state": state, "/v1/droidspeak/plan_books": {"plan_books": list(books)}})

    def fix(self, answers):
        self.run_first(FIXED_SCRIPT % json.dumps(answers))

    def answer_with(self, *answers):
        """From the next open() on, chat requests get these answers; made by chat_answer() and chat_refusal()."""
        self.run_first(CHAT_SCRIPT % json.dumps(answers))

    def chat_bodies(self):
        return self.script("return chatBodies")

    def run_first(self, script):
        made = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self.scripts.append(made["identifier"])

    def close(self):
        for script in self.scripts:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
        self.browser.execute_script("try { localStorage.clear(); sessionStorage.clear(); } catch (error) {}")
        self.browser.get("about:blank")

    def emulate(self, theme):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, element_id):
        return self.script("return document.getElementById(arguments[0]).textContent", element_id).strip()

    def script(self, source, *arguments):
        return self.browser.execute_script(source, *arguments)

    def click(self, selector):
        self.one(selector).click()

    def type(self, selector, text):
        field = self.one(selector)
        field.clear()
        field.send_keys(text)

    def paste(self, selector, text):
        """Like type(), at once."""
        source = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.script(source, self.one(selector), text)

    def select(self, selector, value):
        Select(self.one(selector)).select_by_value(value)

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def focused(self):
        return self.browser.switch_to.active_element.get_attribute("id")

    def wait(self, condition, what, seconds=60):
        return WebDriverWait(self.browser, seconds, poll_frequency=0.05).until(lambda _: condition(), what)

    def alert(self):
        return self.text("alert-text") if self.one("#alert").is_displayed() else ""

    def run_playground(self):
        self.click("#run")
        self.wait(lambda: self.one("#run").is_enabled(), "the run to end", 120)

    def say(self, text):
        """Sends one message and waits for the end of its turn, measurement included."""
        self.paste("#chat-question", text)
        self.one("#chat-question").send_keys(KEYS.ENTER)
        self.wait_for_turn()
        return self.turns()[-1]

    def wait_for_turn(self, seconds=120):
        self.wait(lambda: self.one("#chat-send").is_enabled(), "the turn to end", seconds)

    def turns(self):
        """State, variant, question, answer and facts of every turn."""
        return self.script("""
            return [...document.querySelectorAll('.turn')].map((turn) => ({
              state: turn.dataset.state, variant: turn.querySelector('.variant h4').textContent,
              question: turn.querySelector('.you p').textContent, answer: turn.querySelector('.answer').innerText,
              status: turn.querySelector('.status').textContent,
              ...Object.fromEntries([...turn.querySelectorAll('.chips div')].map((fact) =>
                  [fact.querySelector('dt').textContent, fact.querySelector('dd').textContent]))}))""")

    def arm(self, arm):
        """Status, answer and facts of one way of answering."""
        root = f'.arm[data-arm="{arm}"]'
        names = [item.text for item in self.all(f"{root} dt")]
        values = [item.text for item in self.all(f"{root} dd")]
        return {"state": self.one(root).get_attribute("data-state"), "answer": self.one(f"{root} .answer").text,
                "ttft": self.one(f'.bar[data-arm="{arm}"] .value').text, **dict(zip(names, values))}

    def console_errors(self):
        """What the console holds beside notes; failed requests only when no error was expected."""
        lines = [entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        if self.is_error_expected:
            lines = [entry for entry in lines if entry["source"] != "network"]
        return [entry["message"] for entry in lines]

    def screenshot(self, name):
        """Kept only where SCREENSHOTS names a folder."""
        folder = os.environ.get("SCREENSHOTS")
        if folder:
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))
