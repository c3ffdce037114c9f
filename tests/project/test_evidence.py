"""Figures of docs/evidence.md are those of the committed rows; rows that measure are apart from those that teach."""

import gzip
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in ("bench/evidence", "bench/paper", "tools"):
    sys.path.insert(0, str(ROOT / folder))

import campaign  # noqa: E402
import confirm  # noqa: E402
import noninferiority  # noqa: E402
from variants.qa_task import QaTask  # noqa: E402
from variants.tasks import make_task  # noqa: E402


def test_tables_follow_from_the_rows():
    subprocess.run([sys.executable, ROOT / "bench/evidence/tables.py", "--check"], check=True)


def frontier_entry(plan, cost, **fields):
    return {"plan": plan, "translated": False, "relative_cost": cost, "kl": 0.5, "quality_index": 0.6, **fields}


def measured_rows(losses, count=40):
    """Rows of full prefill and of plans that lose so much of the known answer's probability, by plan."""
    rows = {("full", False): {f"qa-{i}-1": {"score": 0.5, "kl": 0.0, "agreement": 1.0, "nll": -math.log(0.4 + 0.005 * i)} for i in range(count)}}
    for plan, lost in losses.items():
        rows[plan, True] = {name: {"score": 0.5, "kl": 0.01, "agreement": 0.9, "nll": row["nll"] - math.log(1 - lost)}
                            for name, row in rows["full", False].items()}
    return rows


def test_a_confirmed_book_lists_what_more_rows_have_shown():
    book = {"num_layers": 30, "full_score": 0.9, "frontier": [frontier_entry("reuse", 0.04), frontier_entry("reuse+10%", 0.2, translated=True)]}
    made, entries = confirm.confirmed(book, measured_rows({"reuse+5%": 0.10, "reuse+10%": 0.02, "0,16,20+25%": 0.004, "0,16,24+25%": 0.02}))
    assert [e["plan"] for e in made["frontier"]] == ["reuse+5%", "reuse+10%", "0,16,20+25%"], "costs more and loses more"
    assert len(entries) == 4 and made["confirmed_contexts"] == 40
    assert made["full_score"] == pytest.approx(0.5) and made["full_gold_probability"] == pytest.approx(0.4975)
    for entry in made["frontier"]:
        assert entry["quality_index"] == pytest.approx(1 - entry["gold_lost"] - entry["gold_lost_se"])
    assert made["frontier"][1]["gold_lost"] == pytest.approx(0.02)


def test_plans_that_lack_rows_are_left_out():
    rows = measured_rows({"reuse+5%": 0.10, "reuse+10%": 0.02})
    del rows["reuse+10%", True]["qa-3-1"]
    book = {"num_layers": 30, "frontier": [frontier_entry("reuse", 0.04)]}
    assert [e["plan"] for e in confirm.confirmed(book, rows)[0]["frontier"]] == ["reuse+5%"]


def test_costs_are_those_that_the_profiler_writes():
    """a,b,c recompute a + c - b layers, the last of a range for a sixth; tokens are read through all layers and the suffix twice."""
    costs = confirm.Costs({"num_layers": 30, "frontier": [frontier_entry("reuse", 0.04), frontier_entry("reuse+10%", 0.04 * 2 + 0.96 * 0.15, translated=True)]})
    assert costs.translation == pytest.approx(0.05)
    assert costs.of("0,16,24", False) == pytest.approx(0.04 + 0.96 * (8 - 5 / 6) / 30)
    assert costs.of("1,16,24+25%", True) == pytest.approx(0.08 + 0.96 * ((9 - 10 / 6) / 30 + 0.05 * 21 / 30 + 0.25))


def test_needed_questions():
    assert noninferiority.needed(0.3, 0.0, 1) == math.ceil((3.2415 * 0.3 / 0.02) ** 2)
    assert noninferiority.needed(0.3, 0.0, 10 ** 9) == pytest.approx(0.3 * (3.2415 * 0.3 / 0.02) ** 2, rel=1e-2)
    assert noninferiority.needed(0.3, 0.02, 1) == math.inf


def test_questions_on_one_article_may_err_together(tmp_path, monkeypatch):
    changes = {f"qa-{i}": (0.1 if i % 4 < 2 else -0.1) for i in range(40)}
    for clusters, expected in (([i for i in range(40)], 1.0), ([i // 2 for i in range(40)], 2 ** 0.5)):  # alone; in pairs that are alike
        (tmp_path / "clusters.json").write_text(json.dumps(clusters))
        monkeypatch.setattr(noninferiority, "CLUSTERS", tmp_path / "clusters.json")
        assert noninferiority.clustered_error(changes) == pytest.approx(expected * 0.1 / 40 ** 0.5, rel=0.03)


def test_the_chance_of_a_test_is_the_power_at_the_questions_that_it_needs():
    for deviation, loss, draws in ((0.3, 0.0, 1), (0.2, 0.006, 4)):
        questions = noninferiority.needed(deviation, loss, draws)
        assert noninferiority.chance(deviation, loss, draws, questions) == pytest.approx(noninferiority.POWER, abs=1e-3)


def test_jobs_run_by_priority_and_what_fails_stops_its_followers():
    queue, ran = campaign.Queue(time.monotonic() + 60), []

    def fails():
        raise RuntimeError("broken")

    queue.put_all((2, ""), "late", [lambda: ran.append("late")])
    queue.put_all((1, ""), "first", [lambda: ran.append("a"), lambda: ran.append("b")],
                  lambda: queue.put_all((0, ""), "next", [lambda: ran.append("next")]))
    queue.put_all((3, ""), "failing", [fails, lambda: ran.append("c")], lambda: ran.append("never"))
    queue.run(1)
    assert ran == ["a", "b", "next", "late", "c"] and queue.failed == ["failing"]


def test_a_follower_that_fails_is_named():
    queue, ran = campaign.Queue(time.monotonic() + 60), []

    def fails():
        ran.append("then")
        raise RuntimeError("broken")

    queue.put_all((1, ""), "jobs", [lambda: ran.append("a"), lambda: ran.append("b")], fails)
    queue.run(1)
    assert ran == ["a", "b", "then"] and queue.failed == ["jobs"]


def test_a_job_that_failed_once_is_tried_again_before_its_followers():
    queue, ran = campaign.Queue(time.monotonic() + 60), []

    def fails_once():
        ran.append("try")
        if len(ran) == 1:
            raise RuntimeError("broken")

    queue.put_all((1, ""), "shaky", [fails_once], lambda: queue.put_all((0, ""), "next", [lambda: ran.append("next")]))
    queue.run(1)
    assert ran == ["try", "try", "next"] and queue.failed == []


def test_no_job_begins_when_the_time_is_up():
    queue, ran = campaign.Queue(time.monotonic() - 1), []
    queue.put_all((0, ""), "late", [lambda: ran.append("late")])
    queue.run(2)
    assert ran == []


def write_lines(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.fixture
def data(tmp_path):
    question = lambda article, n, k: {"question": f"What is {k} of {article}, {n}?", "answers": ["that"]}
    articles = [{"title": f"Article {a}", "paragraphs": [{"text": f"Text {n} of {a}.", "questions": [question(a, n, k) for k in range(2)]} for n in range(6)]}
                for a in range(40)]
    natural = [{"question": f"who is {n}", "answers": ["he"], "documents": [{"title": f"Page {n}", "text": f"Page text {n}."}]} for n in range(60)]
    write_lines(tmp_path / "squad.articles.train.jsonl.gz", articles)
    write_lines(tmp_path / "nq-open.train.jsonl.gz", natural)
    return tmp_path


@pytest.mark.parametrize("fold", [0, 1])
def test_nothing_is_trained_on_that_is_measured(data, fold):
    task = QaTask(data, fold)
    trained = {(a.question, a.gold) for a in task.squad + task.natural}
    measured = {part: {(a.question, a.gold) for a in task.measured[part]} for part in ("profile", "test")}
    assert measured["profile"] and measured["test"] and not measured["profile"] & measured["test"]
    assert not trained & (measured["profile"] | measured["test"])
    assert {(a.question, a.gold) for a in task.measured["fit"]} <= trained


def test_a_fold_is_scored_on_what_it_was_not_trained_on(data):
    scored = {(row.request, row.answers[0]) for row in make_task("qa", data, 1).rows("test")}
    of_fold = {(a.question if a.question.endswith("?") else a.question + "?", a.answers[0]) for a in QaTask(data, 1).measured["test"]}
    assert scored == of_fold


@pytest.mark.parametrize("choices", [{"fold": 1}, {"most_of_article": 5}])
def test_tasks_without_folds_refuse_them(data, choices):
    with pytest.raises(SystemExit, match="math: has neither folds nor articles"):
        make_task("math", data, **choices)


def test_folds_test_other_articles_and_the_same_profile(data):
    first, second = QaTask(data, 0), QaTask(data, 1)
    articles = lambda task, part: {a.article for a in task.measured[part]} - {None}
    assert not articles(first, "test") & articles(second, "test")
    assert articles(first, "profile") == articles(second, "profile")


def test_draws_ask_the_same_among_other_documents(data):
    task = QaTask(data)
    rows = dict(task.drawn_rows("test", [1, 2]))
    assert len(rows) == 2 * len(task.measured["test"])
    differ = 0
    for number, asked in enumerate(task.measured["test"]):
        one, other = rows[f"{number}-1"], rows[f"{number}-2"]
        assert one.request == other.request and asked.gold in one.documents and asked.gold in other.documents
        differ += one.documents != other.documents
    assert differ == len(task.measured["test"])
    assert dict(task.drawn_rows("test", [2]))["0-2"] == rows["0-2"]
