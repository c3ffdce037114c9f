"""The web page as a person uses it, on top of selenium."""

import json
import os
import pathlib

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

KEYS = Keys
# Answers every call for the state with a given one, so that a view shows known numbers.
STATE_SCRIPT = """
const realFetch = window.fetch;
window.fetch = (path, options) => String(path).endsWith('/v1/droidspeak/state')
    ? Promise.resolve(new Response(JSON.stringify(%s), {headers: {'Content-Type': 'application/json'}}))
    : realFetch(path, options);
"""


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

    def show_state(self, state):
        """From the next open() on, the views get this state instead of the server's."""
        self.run_first(STATE_SCRIPT % json.dumps(state))

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
