#!/usr/bin/env python3
"""DroidSpeak's server against llama-server: the same agents' trace, model, adapters, threads and machine, in one run.

    python3 bench/compare_llama_server.py [--rate 1] [--contexts 4] [--threads 2] [--json out.json]

llama-server is built from the sdist of PyPI's llama-cpp-python (0.3.36) into .cache/llama.cpp/build-server; it holds
all adapters and gets the one to use with every request. Answers are asked for faster than any arm gives them. Prints
bench serve's table and the ratios of answers a second and of the times to the first token."""
import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from compare_cpu_engines import CACHE, ROOT, fetch_source
from gguf_lora import convert

SLOTS = 4
CONTEXT = 8192


def build_server(jobs):
    binary = CACHE / "build-server" / "bin" / "llama-server"
    if binary.exists():
        return binary
    print("building llama-server", file=sys.stderr, flush=True)
    build = CACHE / "build-server"
    subprocess.run(["cmake", "-S", fetch_source(), "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF",
                    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "-j", str(jobs), "--target", "llama-server"], check=True, stdout=subprocess.DEVNULL)
    return binary


def adapters_of(binary, family, model):
    """Name -> GGUF file, in the family's order."""
    folder = CACHE / "loras"
    folder.mkdir(parents=True, exist_ok=True)
    shape = json.loads(subprocess.run([binary, "inspect", model, "--json"], check=True, capture_output=True, text=True).stdout)
    files = {}
    for entry in json.loads(family.read_text())["variants"]:
        files[entry["name"]] = folder / f"{entry['name']}.gguf"
        convert((family.parent / entry["adapter"]).resolve(), files[entry["name"]], shape["heads"], shape["kv_heads"])
    return files


class LlamaServer:
    def __init__(self, binary, model, adapters, threads):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [binary, "-m", model, "--port", str(port), "-t", str(threads), "-c", str(SLOTS * CONTEXT), "--parallel", str(SLOTS),
                   "--lora-init-without-apply", "--lora", ",".join(str(path) for path in adapters.values())]
        self.log = open(CACHE / "server.log", "w")
        self.process = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log)
        for _ in range(300):
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
            if self.process.poll() is not None:
                break
        sys.exit(f"llama-server did not start; see {CACHE / 'server.log'}")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1", help="answers asked for per second")
    parser.add_argument("--contexts", default="4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", default=str(ROOT / "build" / "droidspeak"))
    parser.add_argument("--family", type=Path, default=ROOT / "models" / "smollm2" / "family.json")
    parser.add_argument("--data", default=str(ROOT / "tests" / "data" / "qa" / "qa.demo.jsonl.gz"))
    parser.add_argument("--arms", default="off,droidspeak")
    parser.add_argument("--json", help="where to write bench serve's figures")
    parser.add_argument("more", nargs="*", help="further options of bench serve, after --")
    args = parser.parse_args()
    model = args.family.parent / json.loads(args.family.read_text())["base"]["path"]
    adapters = adapters_of(args.binary, args.family, model)
    server = LlamaServer(build_server(os.cpu_count()), model, adapters, args.threads)
    try:
        command = [args.binary, "bench", "serve", "--family", str(args.family), "--data", args.data, "--threads", str(args.threads),
                   "--rates", args.rate, "--contexts", args.contexts, "--arms", args.arms, "--url", server.url, "--url-loras", ",".join(adapters),
                   "--out", str(ROOT / "out" / "llama-server"), *args.more]
        subprocess.run(command, check=True)
    finally:
        server.stop()
    figures = json.loads((ROOT / "out" / "llama-server" / "bench_serve.json").read_text())
    rows = {"llama-server" if row["arm"] == server.url else row["arm"]: row for row in figures["rows"]}
    theirs = rows.pop("llama-server")
    for arm, row in rows.items():
        print(f"{arm} against llama-server: {row['throughput'] / theirs['throughput']:.2f}x the answers a second, "
              f"median time to the first token {theirs['ttft_ms_p50'] / row['ttft_ms_p50']:.1f}x shorter")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
