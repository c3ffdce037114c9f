"""Chromium and a running `droidspeak serve` for the tests of the web page.

DROIDSPEAK names the program (build/droidspeak), FAMILY the family (models/smollm2/family.json).
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import urllib.request

import pytest
from selenium import webdriver

from page import Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
API_KEY = "browser-test-key"
ADMIN_KEY = "browser-admin-key"


class Server:
    """A running server; `url` has no trailing slash."""

    def __init__(self, cache_folder, log, *flags):
        program = os.environ.get("DROIDSPEAK", ROOT / "build" / "droidspeak")
        family = os.environ.get("FAMILY", ROOT / "models" / "smollm2" / "family.json")
        command = [program, "serve", "--family", family, "--port", "0", "--max-model-len", "2048"]
        command += ["--kv-memory", "128MiB", "--cache-memory", "256MiB"]
        command += ["--cache-dir", cache_folder, "--cache-disk", "256MiB", *flags]
        self.log = open(log, "w")
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT)
        line = self.process.stdout.readline().strip()
        found = re.match(r"listening on (https?://\S+)$", line)
        if not found:
            self.stop()
            raise RuntimeError(f"the server did not start: {line!r}; see {log}")
        self.url = found[1]

    def state(self):
        with urllib.request.urlopen(self.url + "/v1/droidspeak/state") as response:
            return json.load(response)

    def plan_books(self):
        with urllib.request.urlopen(self.url + "/v1/droidspeak/plan_books") as response:
            return json.load(response)["plan_books"]

    def count_tokens(self, text):
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        request = urllib.request.Request(self.url + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)["count"]

    def stop(self):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.log.close()
        return self.process.returncode


@pytest.fixture(scope="session")
def server_maker(tmp_path_factory):
    def make(*flags):
        folder = tmp_path_factory.mktemp("server")
        return Server(folder / "cache", folder / "server.log", *flags)
    return make


@pytest.fixture(scope="session")
def server(server_maker):
    running = server_maker()
    yield running
    assert running.stop() == 0


def chromium():
    """Chromium and its driver. Ubuntu has them as snaps only, whose commands are scripts that do not run without snapd."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    for path in (program, driver):
        if path is None or subprocess.run([path, "--version"], capture_output=True).returncode != 0:
            pytest.skip("no Chromium with chromedriver on this machine")
    return program, driver


@pytest.fixture(scope="session")
def browser():
    program, driver = chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1280,1000"):
        options.add_argument("--" + flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def page(browser):
    """The page, not open yet; afterwards nothing unexpected may stand in the console."""
    fresh = Page(browser)
    yield fresh
    errors = fresh.console_errors()
    fresh.close()
    assert errors == []
