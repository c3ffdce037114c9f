#!/usr/bin/env python3
"""DroidSpeak against llama.cpp and openvino-genai on the same files, threads and machine, interleaved in one run.

    python3 bench/compare_cpu_engines.py [--rounds 3] [--threads 2] [--json out.json]

llama.cpp is built from the sdist of PyPI's llama-cpp-python (0.3.36) into .cache/llama.cpp. Prefill takes its
better of flash attention on and off. openvino-genai comes from PyPI into .venv-openvino (tools/setup bench); it reads GGUF
files itself. Models: the default one, and a 1B shape in Q4_K_M with random weights. Prints medians of rates and of the
rounds' ratios."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "llama.cpp"
PACKAGE = "llama-cpp-python==0.3.36"


def fetch_source():
    """llama.cpp's folder inside the unpacked sdist."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not list(CACHE.glob("*.tar.gz")):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python",
                        "-d", CACHE, PACKAGE], check=True)
    if not list(CACHE.glob("llama_cpp_python-*/vendor/llama.cpp")):
        with tarfile.open(next(CACHE.glob("*.tar.gz"))) as archive:
            archive.extractall(CACHE, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(CACHE)
    return next(CACHE.glob("llama_cpp_python-*/vendor/llama.cpp"))


def build_llama_cpp(jobs):
    binary = CACHE / "build" / "bin" / "llama-bench"
    if binary.exists():
        return binary
    print(f"building llama.cpp from {PACKAGE}", file=sys.stderr, flush=True)
    subprocess.run(["cmake", "-S", fetch_source(), "-B", CACHE / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF",
                    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", CACHE / "build", "-j", str(jobs), "--target", "llama-bench", "llama-quantize"], check=True,
                   stdout=subprocess.DEVNULL)
    return binary


def quantized(bench, model, kind):
    """The model in another of llama.cpp's formats."""
    path = CACHE / f"model-{kind}.gguf"
    if not path.exists():
        subprocess.run([bench.parent / "llama-quantize", "--allow-requantize", model, path, kind], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def llama_prefill(bench, model, tokens, threads, flash):
    out = subprocess.run([bench, "-m", model, "-p", str(tokens), "-n", "0", "-t", str(threads), "-fa", flash, "-r", "1", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)[0]["avg_ts"]


def llama_decode(bench, model, tokens, threads):
    out = subprocess.run([bench, "-m", model, "-p", "0", "-n", str(tokens), "-t", str(threads), "-r", "1", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)[0]["avg_ts"]


def our_bench(binary, family, what, threads, *flags):
    out = subprocess.run([binary, "bench", what, "--family", family, "--model", "base", "--threads", str(threads), "--repeats", "1", "--json", *flags],
                         check=True, capture_output=True, text=True).stdout
    return [row["tokens_per_second"] for row in json.loads(out)]


def openvino_rates(model, tokens, threads):
    """Of openvino-genai on this file; nothing where it is not installed."""
    python = ROOT / ".venv-openvino" / "bin" / "python"
    if not python.exists():
        return {}
    out = subprocess.run([python, ROOT / "bench" / "openvino_rate.py", model, "--tokens", ",".join(map(str, tokens)), "--threads", str(threads),
                          "--rounds", "1"], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def random_model():
    """A family whose base is a 1B shape in Q4_K_M with random weights."""
    folder = CACHE / "random-1b-q4_k_m"
    if not (folder / "family.json").exists():
        subprocess.run([sys.executable, ROOT / "tools" / "make_random_gguf.py", "--shape", "1b", "--type", "q4_k_m", "--out", folder], check=True)
    return folder / "family.json"


class Model:
    """A family to measure, and the files that the other engines read it from: form -> path."""

    def __init__(self, name, family, tokens, llama_files, openvino_files):
        self.name, self.family, self.tokens = name, family, tokens
        self.llama_files, self.openvino_files = llama_files, openvino_files

    def measure(self, bench, args):
        """One round: (engine, work) -> tokens a second."""
        rates = {}
        for tokens in self.tokens:
            work = f"prefill {tokens}"
            rates["droidspeak", work] = our_bench(args.binary, self.family, "prefill", args.threads, "--tokens", str(tokens))[0]
            for form, path in self.llama_files.items():
                rates[f"llama.cpp {form}", work] = max(llama_prefill(bench, path, tokens, args.threads, flash) for flash in ("0", "1"))
        ours = our_bench(args.binary, self.family, "decode", args.threads, "--batch", "1,8")
        rates["droidspeak", "decode"], rates["droidspeak", "decode, 8 sequences"] = ours
        for form, path in self.llama_files.items():
            rates[f"llama.cpp {form}", "decode"] = llama_decode(bench, path, 64, args.threads)
        for form, path in self.openvino_files.items():
            for work, rate in openvino_rates(path, self.tokens, args.threads).items():
                rates[f"openvino-genai {form}", work] = rate
        return rates


def report(model, rounds):
    print(f"{model.name}, {len(rounds)} rounds")
    print(f"{'engine':<24} {'work':<20} {'tokens/s':>10} {'ours / it':>10}  least to most")
    for engine, work in sorted(rounds[0], key=lambda name: (name[1], name[0])):
        rates = [r[engine, work] for r in rounds]
        ratios = [r["droidspeak", work] / r[engine, work] for r in rounds]
        print(f"{engine:<24} {work:<20} {statistics.median(rates):>10.1f} {statistics.median(ratios):>9.2f}x  "
              f"{min(ratios):.2f} to {max(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="about eight minutes each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", default=str(ROOT / "build" / "droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models" / "smollm2" / "family.json"))
    parser.add_argument("--formats", default="Q4_1,Q8_0,Q4_0,F16", help="llama.cpp's forms of the model; Q4_1 is the file as it is")
    parser.add_argument("--json")
    args = parser.parse_args()
    bench = build_llama_cpp(os.cpu_count())
    gguf = next((ROOT / "models" / "smollm2").glob("*.gguf"))
    forms = {kind: gguf if kind == "Q4_1" else quantized(bench, gguf, kind) for kind in args.formats.split(",")}
    random_family = random_model()
    random_file = {"Q4_K_M": random_family.parent / "base.gguf"}
    models = [Model("default model", args.family, (512, 4096), forms, {"Q4_1": gguf}),
              Model("1B shape, random weights", random_family, (512,), random_file, random_file)]
    rounds = {model.name: [] for model in models}
    for number in range(args.rounds):
        for model in models:
            rounds[model.name].append(model.measure(bench, args))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    for model in models:
        report(model, rounds[model.name])
    if args.json:
        rows = [{"model": model.name, "engine": engine, "work": work, "tokens_per_second": [r[engine, work] for r in rounds[model.name]]}
                for model in models for engine, work in rounds[model.name][0]]
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
