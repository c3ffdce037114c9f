"""Plan books as the commands make and use them: whose weights they are for, and profiles that are cut short."""

import json
import signal
import time

import pytest


def generate(program, text, *flags):
    return program.json("generate", "--model", "alpha", "--sender", "base", "--plan", "auto", "--context-file", text,
                        "--prompt", "And then?", "--max-tokens", 2, "--temperature", 0, *flags)


def test_auto_takes_the_plan_of_the_pairs_book(program_with_books, text):
    answer = generate(program_with_books, text)
    assert answer["plan"] == "0,1,3" and answer["reused_tokens"] > 0


def test_a_book_of_other_weights_is_not_used(program_with_books, text):
    """The names stay, the adapters behind them change places."""
    family = json.loads(program_with_books.family.read_text())
    alpha, beta = (next(entry for entry in family["variants"] if entry["name"] == name) for name in ("alpha", "beta"))
    alpha["adapter"], beta["adapter"] = beta["adapter"], alpha["adapter"]
    program_with_books.family.write_text(json.dumps(family))
    assert generate(program_with_books, text)["plan"] == "full"
    done = program_with_books.run("inspect", program_with_books.family, "--json")
    assert done.returncode == 1 and "not intact" in done.stderr
    assert len(json.loads(done.stdout)["skipped_plan_books"]) == 2


def profile(rows, out, *flags):
    return ["profile", "--sender", "base", "--receiver", "alpha", "--data", rows, "--out", out, "--contexts", 12, *flags]


def facts(book):
    """What a profile finds, without its times."""
    plans = [(entry["plan"], entry["translated"], entry["kl"], entry["agreement"]) for entry in book["frontier"]]
    return plans, book["contexts"], book["metric"]


@pytest.fixture
def killed_profile(program, rows, tmp_path):
    """The path of a profile that kill -9 ended once it had saved something."""
    out = tmp_path / "book.json"
    running = program.start(*profile(rows, out))
    record = tmp_path / "book.json.partial" / "record.msgpack"
    give_up = time.monotonic() + 100
    while running.poll() is None and not record.exists():
        assert time.monotonic() < give_up, "nothing was saved"
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert running.returncode == -signal.SIGKILL, "the profile had ended before it could be killed"
    return out


def test_a_killed_profile_goes_on(program, rows, tmp_path, killed_profile):
    assert not killed_profile.exists(), "no half-written book"
    resumed = program.json(*profile(rows, killed_profile, "--resume"))
    whole = program.json(*profile(rows, tmp_path / "whole.json"))
    assert facts(resumed) == facts(whole)
    assert resumed["prefill_equivalents"] == pytest.approx(whole["prefill_equivalents"])
    assert not (tmp_path / "book.json.partial").exists()


def test_another_profiles_state_is_refused(program, rows, killed_profile):
    done = program.run(*profile(rows, killed_profile, "--resume", "--group", 3), "--family", program.family)
    assert done.returncode == 1 and "book.json.partial" in done.stderr


def test_a_profile_says_what_it_found(program_with_books, rows, text, tmp_path):
    book = program_with_books.json(*profile(rows, tmp_path / "book.json"))
    assert set(book) >= {"plan_book", "frontier", "seconds", "prefill_equivalents"} and book["frontier"]
    assert all(set(entry) >= {"plan", "recomputed_layers", "kl", "score"} for entry in book["frontier"])
    shown = program_with_books.run("inspect", tmp_path / "book.json", "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)["receiver"] == "alpha"
