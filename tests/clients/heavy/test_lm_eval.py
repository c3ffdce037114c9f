"""lm-eval against the server: log-likelihoods by local-completions, generation by local-chat-completions."""

import json
import subprocess
import sys

import httpx
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


def logprob_of(server, model, prompt, choice):
    """Of the choice behind the prompt, from the server's own log-probabilities."""
    def tokens(text):
        return httpx.post(f"{server.url}/tokenize", json={"model": model, "prompt": text}).json()["tokens"]
    body = {"model": model, "prompt": prompt + choice, "echo": True, "logprobs": 0, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
    whole, begin = len(tokens(prompt + choice)), len(tokens(prompt))
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][begin:whole])


def test_loglikelihoods(server, model, tasks, tmp_path):
    arguments = f"model={model},base_url={server.url}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1"
    result, samples = run(tasks, tmp_path, "droidspeak_choice", "local-completions", arguments)
    assert len(samples) == len(ROWS)
    num_right = 0
    for sample in samples:
        row = sample["doc"]
        prompt = f"Question: {row['question']}\nAnswer:"
        found = [float(logprob) for (logprob, _is_greedy), in sample["resps"]]
        assert found == pytest.approx([logprob_of(server, model, prompt, choice) for choice in row["choices"]], abs=1e-3)
        num_right += max(range(len(found)), key=found.__getitem__) == row["label"]
    assert result["acc,none"] == pytest.approx(num_right / len(ROWS))


def test_generation(server, model, tasks, tmp_path):
    arguments = f"model={model},base_url={server.url}/v1/chat/completions,num_concurrent=2,max_retries=1"
    _, samples = run(tasks, tmp_path, "droidspeak_generate", "local-chat-completions", arguments, "--apply_chat_template")
    assert len(samples) == len(ROWS)
    assert all(isinstance(sample["resps"][0][0], str) for sample in samples)
