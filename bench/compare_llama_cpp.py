#!/usr/bin/env python3
"""DroidSpeak against llama.cpp on the same file, threads and machine, interleaved in one run.

    python3 bench/compare_llama_cpp.py [--rounds 3] [--threads 2] [--json out.json]

llama.cpp is built from the sdist of PyPI's llama-cpp-python (0.3.36) into .cache/llama.cpp. Prefill takes its
better of flash attention on and off. Prints a table of medians and ratios."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="about five minutes each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", default=str(ROOT / "build" / "droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models" / "smollm2" / "family.json"))
    parser.add_argument("--formats", default="Q4_1,Q8_0,Q4_0,F16", help="llama.cpp's forms of the model; Q4_1 is the file as it is")
    parser.add_argument("--json")
    args = parser.parse_args()
    bench = build_llama_cpp(os.cpu_count())
    model = next((ROOT / "models" / "smollm2").glob("*.gguf"))
    formats = args.formats.split(",")
    models = {kind: model if kind == "Q4_1" else quantized(bench, model, kind) for kind in formats}
    rows = {}

    def note(name, value):
        rows.setdefault(name, []).append(value)

    for round_number in range(args.rounds):
        for tokens in (512, 4096):
            note(("droidspeak", f"prefill {tokens}"), our_bench(args.binary, args.family, "prefill", args.threads, "--tokens", str(tokens))[0])
            for kind, path in models.items():
                note((f"llama.cpp {kind}", f"prefill {tokens}"), max(llama_prefill(bench, path, tokens, args.threads, flash) for flash in ("0", "1")))
        ours = our_bench(args.binary, args.family, "decode", args.threads, "--batch", "1,8")
        note(("droidspeak", "decode"), ours[0])
        note(("droidspeak", "decode, 8 sequences"), ours[1])
        for kind, path in models.items():
            note((f"llama.cpp {kind}", "decode"), llama_decode(bench, path, 64, args.threads))
        print(f"round {round_number + 1} of {args.rounds}", file=sys.stderr, flush=True)

    medians = {name: statistics.median(values) for name, values in rows.items()}
    print(f"{'engine':<18} {'work':<20} {'tokens/s':>10} {'ours / it':>10}")
    for (engine, work), value in sorted(medians.items(), key=lambda item: (item[0][1], item[0][0])):
        ratio = medians[("droidspeak", work)] / value
        print(f"{engine:<18} {work:<20} {value:>10.1f} {ratio:>9.2f}x")
    if args.json:
        Path(args.json).write_text(json.dumps([{"engine": e, "work": w, "tokens_per_second": v} for (e, w), v in medians.items()], indent=1))


if __name__ == "__main__":
    main()
