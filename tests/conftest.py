"""A test that hangs is ended, with a look at what each of its threads does: DROIDSPEAK_TEST_SECONDS for another limit, 0 for none."""

import faulthandler
import os
import pathlib

import pytest

SECONDS = float(os.environ.get("DROIDSPEAK_TEST_SECONDS", 600))  # the slowest takes a good minute
UNLIMITED = ("agents", "heavy")  # they install and run what others have written

terminal = None


def pytest_configure():
    global terminal
    terminal = os.fdopen(os.dup(2), "w")  # not what pytest puts in its place while a test runs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    limits = SECONDS > 0 and not set(UNLIMITED) & set(pathlib.Path(item.path).parts)
    if limits:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=terminal)
    try:
        return (yield)
    finally:
        if limits:
            faulthandler.cancel_dump_traceback_later()
