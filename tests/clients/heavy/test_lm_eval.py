"""lm-eval against the server: log-likelihoods by local-completions, generation by local-chat-completions."""

import json
import subprocess
import sys

import pytest

TASKS = {
    "droidspeak_choice": {
        "task": "droidspeak_choice", "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "droidspeak_generate": {
        "task": "droidspeak_generate", "output_type": "generate_until",
        "doc_to_text": "{{question}}", "doc_to_target": "{{choices[label]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}
ROWS = [
    {"question": "What is the capital of France?", "choices": [" Paris", " Berlin", " Madrid"], "label": 0},
    {"question": "Which animal barks?", "choices": [" the cat", " the dog"], "label": 1},
    {"question": "What comes after Monday?", "choices": [" Friday", " Tuesday", " Sunday"], "label": 1},
    {"question": "How many legs has a spider?", "choices": [" eight", " two"], "label": 0},
]


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, task in TASKS.items():
        task = {**task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps(task))
    return folder


def run(tasks, tmp_path, task, kind, arguments, *flags):
    subprocess.run([sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", task,
                    "--include_path", tasks, "--output_path", tmp_path, "--log_samples", *flags], check=True)
    results = json.loads(next(tmp_path.rglob("results_*.json")).read_text())
    samples = [json.loads(line) for line in next(tmp_path.rglob("samples_*.jsonl")).read_text().splitlines()]
    return results["results"][task], samples


def test_loglikelihoods(server, model, tasks, tmp_path):
    arguments = f"model={model},base_url={server.url}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1"
    result, samples = run(tasks, tmp_path, "droidspeak_choice", "local-completions", arguments)
    assert 0 <= result["acc,none"] <= 1
    assert len(samples) == len(ROWS)
    for sample in samples:
        for (logprob, _is_greedy), in sample["resps"]:
            assert float(logprob) < 0


def test_generation(server, model, tasks, tmp_path):
    arguments = f"model={model},base_url={server.url}/v1/chat/completions,num_concurrent=2,max_retries=1"
    _, samples = run(tasks, tmp_path, "droidspeak_generate", "local-chat-completions", arguments, "--apply_chat_template")
    assert len(samples) == len(ROWS)
    assert all(isinstance(sample["resps"][0][0], str) for sample in samples)
