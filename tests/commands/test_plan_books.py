"""Plan books as the commands make and use them: whose weights they are for, and profiles that are cut short."""

import json
import signal
import struct
import time

import pytest


def generate(program, text, *flags):
    return program.json("generate", "--model", "alpha", "--sender", "base", "--plan", "auto", "--context-file", text,
                        "--prompt", "And then?", "--max-tokens", 2, "--temperature", 0, *flags)


def test_auto_takes_the_plan_of_the_pairs_book(program_with_books, text):
    answer = generate(program_with_books, text)
    assert answer["plan"] == "0,1,3" and answer["reused_tokens"] > 0


def test_a_book_of_other_weights_is_not_used(program_with_books, text):
    """The name stays, the adapter behind it is scaled otherwise."""
    config = program_with_books.family.parent / "adapters" / "alpha" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 1.25}))
    assert generate(program_with_books, text)["plan"] == "full"
    done = program_with_books.run("inspect", program_with_books.family, "--json")
    assert done.returncode == 1 and "not intact" in done.stderr
    skipped = json.loads(done.stdout)["skipped_plan_books"]
    assert len(skipped) == 1 and 'made for other weights of "alpha"' in skipped[0]


def test_a_book_of_another_configuration_is_not_used(program_with_books, text):
    """The same weights, turned otherwise."""
    config = program_with_books.family.parent / "base" / "config.json"
    good = config.read_text()
    config.write_text(json.dumps(json.loads(good) | {"rope_theta": 20000.0}))
    assert generate(program_with_books, text)["plan"] == "full"
    done = program_with_books.run("inspect", program_with_books.family, "--json")
    skipped = json.loads(done.stdout)["skipped_plan_books"]
    assert done.returncode == 1 and len(skipped) == 2
    assert all('made for another configuration of "base"' in reason for reason in skipped)
    config.write_text(json.dumps(json.loads(good) | {"max_position_embeddings": 2048}))
    for flags in ([], ["--precision", "exact"], ["--max-model-len", 1024]):
        assert generate(program_with_books, text, *flags)["plan"] == "0,1,3", flags


def test_a_book_counts_for_its_weights_whatever_their_name(program_with_books, text):
    """The adapters change places, and their books with them."""
    family = json.loads(program_with_books.family.read_text())
    alpha, beta = (next(entry for entry in family["variants"] if entry["name"] == name) for name in ("alpha", "beta"))
    alpha["adapter"], beta["adapter"] = beta["adapter"], alpha["adapter"]
    program_with_books.family.write_text(json.dumps(family))
    assert generate(program_with_books, text)["plan"] == "0,1,3"
    done = program_with_books.run("inspect", program_with_books.family, "--json")
    assert json.loads(done.stdout)["skipped_plan_books"] == []


def test_pairs_without_a_book_follow_the_familys_plan(program_with_books, text):
    """And without that they share nothing; a plan that needs a book is refused by name."""
    family = json.loads(program_with_books.family.read_text()) | {"plan_books": []}
    for extra, plan in (({}, "full"), ({"unprofiled": "reuse+10%"}, "reuse+10%")):
        program_with_books.family.write_text(json.dumps(family | extra))
        answer = generate(program_with_books, text)
        assert answer["plan"] == plan and (answer["looked_at_tokens"] > 0) == bool(extra)
    program_with_books.family.write_text(json.dumps(family | {"unprofiled": "0,1,3"}))
    done = program_with_books.run("score", "--model", "alpha", "--file", text, "--family", program_with_books.family)
    assert done.returncode != 0 and "unprofiled" in done.stderr and "0,1,3" in done.stderr


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


def test_a_profile_names_the_model_that_diverged(program_with_books, rows, tmp_path):
    """Its K/V are infinite, and with them the maps that are fitted on them."""
    folder = program_with_books.family.parent / "adapters" / "alpha"
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 1e30}))
    done = program_with_books.run(*profile(rows, tmp_path / "book.json"), "--family", program_with_books.family, "--device", "cpu")
    assert done.returncode == 1 and "infinite or not a number" in done.stderr
    assert f'"alpha" ({folder})' in done.stderr and '"base" (' in done.stderr


def test_a_sender_without_room_for_its_cache_says_so(program, text):
    for command, extra in (("generate", ["--context-file", text, "--prompt", "And then?"]), ("score", ["--file", text, "--context-tokens", 130])):
        done = program.run(command, "--family", program.family, "--device", "cpu", "--model", "alpha", "--sender", "base", "--plan", "reuse",
                           "--cache-memory", 0, *extra)
        assert done.returncode == 0 and "raise --cache-memory?" in done.stderr, done.stderr


def test_a_profile_says_what_it_found(program_with_books, rows, text, tmp_path):
    book = program_with_books.json(*profile(rows, tmp_path / "book.json"))
    assert set(book) >= {"plan_book", "frontier", "seconds", "prefill_equivalents"} and book["frontier"]
    assert all(set(entry) >= {"plan", "recomputed_layers", "kl", "score"} for entry in book["frontier"])
    shown = program_with_books.run("inspect", tmp_path / "book.json", "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)["receiver"] == "alpha"


def write_maps(path, values, columns=64, layer=1):
    """A map of rank 1 on one layer's K/V, every factor with the value."""
    shapes = {"down": [1, columns], "up": [columns, 1], "bias": [columns]}
    header, data = {}, b""
    for name, shape in shapes.items():
        piece = struct.pack(f"<{columns}f", *[values] * columns)
        header[f"kv.{layer}.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_maps(program, **changes):
    """The book of alpha from base with maps beside it, translated where it shares."""
    family = json.loads(program.family.read_text())
    path = next(program.family.parent / book for book in family["plan_books"] if "alpha" in book)
    book = json.loads(path.read_text()) | {"maps": "maps.safetensors"} | changes
    path.write_text(json.dumps(book))
    write_maps(path.parent / "maps.safetensors", 0.01)
    return path


def test_inspect_reads_the_maps_of_a_book(program_with_books):
    book = with_maps(program_with_books)
    maps = book.parent / "maps.safetensors"
    assert program_with_books.run("inspect", book).returncode == 0
    whole = maps.read_bytes()

    def expect_refused(what):
        done = program_with_books.run("inspect", book)
        assert done.returncode == 1 and str(maps) in done.stderr and what in done.stderr, done.stderr
    for data in (b"", b"junk" * 20, whole[:-4]):
        maps.write_bytes(data)
        expect_refused("its translation maps cannot be used")
    write_maps(maps, float("nan"))
    expect_refused("holds a value that is not finite")
    write_maps(maps, 0.01, layer=9)
    expect_refused("belong to none of the 4 layers")
    maps.unlink()
    expect_refused("are missing")
    maps.mkdir()
    expect_refused("its translation maps cannot be used")


def test_the_plan_of_a_report_gives_the_same_answer(program_with_books, text):
    """Plain reuse that is translated has a name of its own."""
    with_maps(program_with_books)
    def score(plan):
        found = program_with_books.json("score", "--model", "alpha", "--file", text, "--sender", "base", "--context-tokens", 130, "--plan", plan)
        return found["plan"], found["translated"], found["nll"]
    raw, translated = score("reuse"), score("0,2,2")
    assert raw[:2] == ("reuse", False) and translated[:2] == ("0,0,0", True) and raw[2] != translated[2]
    assert score("0,0,0") == translated and score("0,2,2r") == raw
