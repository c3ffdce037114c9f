"""guidellm's load generator against the server."""

import json
import subprocess
import sys


def test_benchmark_runs(server, model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"Tell me about number {i}.", "output_tokens_count": 8} for i in range(32)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "benchmarks.json"
    subprocess.run([sys.executable, "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={server.url},model={model}",
                    "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8",
                    "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={output}",
                    "--disable-console-interactive"], check=True, timeout=600)
    benchmark = json.loads(output.read_text())["benchmarks"][0]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == 8 and totals["errored"] == 0
    assert benchmark["metrics"]["time_to_first_token_ms"]["successful"]["mean"] > 0
