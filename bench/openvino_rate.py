#!/usr/bin/env python3
"""Tokens a second of openvino-genai on a GGUF file, as JSON.

    .venv-openvino/bin/python bench/openvino_rate.py MODEL.gguf --tokens 512,4096 [--decode 64] [--threads 2] [--rounds 3]

It reads GGUF files itself. Needs openvino-genai (bench/openvino_requirements.txt). Prompts differ from round to round, so
that no round finds another's K/V; the first, in which kernels are compiled, is not counted."""
import argparse
import json
import statistics

import numpy
import openvino
import openvino_genai


def inputs_of(tokens, seed):
    ids = numpy.random.default_rng(seed).integers(5, 250, (1, tokens), dtype=numpy.int64)
    return openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))


def measure(pipeline, tokens, generated, seed):
    config = openvino_genai.GenerationConfig(max_new_tokens=generated, min_new_tokens=generated, ignore_eos=True, do_sample=False)
    return pipeline.generate(inputs_of(tokens, seed), config).perf_metrics


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="512,4096")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pipeline = openvino_genai.LLMPipeline(args.model, "CPU", INFERENCE_NUM_THREADS=args.threads)
    rates = {}
    for tokens in map(int, args.tokens.split(",")):
        times = [measure(pipeline, tokens, 1, 100 * tokens + i).get_ttft().mean for i in range(args.rounds + 1)][1:]
        rates[f"prefill {tokens}"] = 1000 * tokens / statistics.median(times)
    times = [measure(pipeline, 16, args.decode, i).get_tpot().mean for i in range(args.rounds + 1)][1:]
    rates["decode"] = 1000 / statistics.median(times)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
