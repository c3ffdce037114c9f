"""guidellm's load generator against the server."""

import json
import subprocess
import sys


def test_benchmark_runs(server, model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Tell me about number {i}."}) + "\n" for i in range(32)))
    output = tmp_path / "benchmarks.json"
    subprocess.run([sys.executable, "-m", "guidellm", "benchmark", "run", "--target", server.url, "--model", model,
                    "--data", prompts, "--rate-type", "concurrent", "--rate", "2", "--max-requests", "8",
                    "--output-path", output], check=True, timeout=600)
    benchmark = json.loads(output.read_text())["benchmarks"][0]
    text = json.dumps(benchmark)
    assert "time_to_first_token_ms" in text
