#!/usr/bin/env python3
"""Trains the variants of the default family and measures them before and after.

LoRA variants become PEFT folders, full fine-tunes Hugging Face folders; each with a model card.

Needs torch, tokenizers, safetensors and numpy; one GPU for minutes, or a CPU for a try with few steps.
Data: a folder of .jsonl.gz files (HotpotQA, SQuAD, Natural Questions, GSM8K, SST-2, CoNLL++, ...).
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # before torch: processes share a GPU's memory

import torch

from variants.adapter import load_adapter, save_adapter
from variants.base import load_base
from variants.card import write_card
from variants.checkpoint import load_checkpoint, save_checkpoint
from variants.layout import read_qa
from variants.llama import Llama, Lora
from variants.qa_task import TEST_REMAINDERS
from variants.scoring import measure_reuse, score
from variants.tasks import MEASURES, TASKS, make_task
from variants.training import Recipe, train

BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"

RECIPES = {
    "qa": Recipe("qa", rank=16, learning_rate=1e-3, steps=1600),
    "qa-alt": Recipe("qa", rank=16, learning_rate=5e-4, steps=900, seed=1),
    "math": Recipe("math", rank=16, learning_rate=5e-4, steps=1000),
    "sentiment": Recipe("sentiment", rank=16, learning_rate=5e-4, steps=600),
    "entities": Recipe("entities", rank=16, learning_rate=2e-4, steps=800),
    "qa-activated": Recipe("qa", rank=16, learning_rate=1e-3, steps=1600, invocation="<|im_start|>assistant\n"),
    "qa-upper15": Recipe("qa", rank=16, learning_rate=1e-3, steps=900, seed=1, first_layer=15),
    "qa-upper20": Recipe("qa", rank=16, learning_rate=1e-3, steps=900, seed=1, first_layer=20),
    "qa-full": Recipe("qa", rank=0, learning_rate=1e-4, steps=900),
    "math-full": Recipe("math", rank=0, learning_rate=1e-4, steps=1000),
}
# Layers recomputed by the receiver in the reuse measurement, of 30.
REUSE_BLOCKS = [(0, 0), (18, 24), (16, 24), (14, 24), (12, 24), (10, 26)]

EXAMPLE = """examples:
  everything, side by side on one GPU:
    train_variants.py all --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data data --out out --compile
  one variant, a short try on a CPU:
    train_variants.py train sentiment --gguf model.gguf --data data --out out --steps 5 --limit 4
  scores of a folder that was trained before, and rows of a task for other tools:
    train_variants.py score families/smollm2/qa --gguf model.gguf --data data --out out
    train_variants.py rows entities test --data data --out entities.jsonl
"""


def say_as(name: str):
    begin = time.time()
    return lambda text: print(f"[{time.time() - begin:5.0f} s] {name}: {text}", flush=True)


class Setting:
    """What every command that runs a model needs."""

    def __init__(self, options):
        self.base = load_base(options.gguf)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.compute = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.backends.cuda.matmul.allow_tf32 = True

    def model(self, lora: Lora | None = None) -> Llama:
        model = Llama(self.base, self.compute)
        model.lora = lora
        return model.to(self.device)

    def load(self, path: str) -> Llama:
        """`base`, a PEFT folder, or the Hugging Face folder of a full fine-tune."""
        if path == "base":
            return self.model().requires_grad_(False)
        folder = Path(path)
        if (folder / "adapter_config.json").exists():
            return self.model(load_adapter(self.base, folder)).requires_grad_(False)
        if (folder / "config.json").exists():
            return Llama(load_checkpoint(folder, self.base), self.compute).to(self.device).requires_grad_(False)
        raise SystemExit(f"{path}: no such model; expected `base`, a PEFT folder or a Hugging Face folder")


def write_json(path: Path, document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_train(options) -> None:
    say = say_as(options.name)
    recipe = RECIPES[options.recipe or options.name]
    changed = {"seed": options.seed, "steps": options.steps, "learning_rate": options.learning_rate}
    recipe = replace(recipe, **{key: value for key, value in changed.items() if value is not None})
    torch.manual_seed(recipe.seed)
    setting = Setting(options)
    invocation = setting.base.tokenizer.encode(recipe.invocation, add_special_tokens=False).ids or None
    model = setting.model(Lora(setting.base, recipe.rank, 2.0 * recipe.rank, invocation, recipe.first_layer) if recipe.rank else None)
    model.compiles = options.compile
    say(f"{recipe} on {setting.device}")
    done = train(model, make_task(recipe.task, options.data, options.fold), setting.base.tokenizer, recipe, say)
    model.requires_grad_(False)
    folder = options.out / options.name
    if recipe.rank:
        save_adapter(model.lora, folder, BASE_NAME)
    else:
        save_checkpoint(model, setting.base, folder)
    report = {"name": options.name, "recipe": asdict(recipe), "fold": options.fold, "done": done}
    write_json(options.out / f"{options.name}.json", report)
    if options.limit == 0:
        return
    del model
    measure = lambda path: score(setting.load(path), setting.base.tokenizer, setting.base.end_token, options.data,
                                 [recipe.task], options.limit, recipe.task == "qa", say, options.fold)
    report["scores"] = measure(str(folder))  # of what was saved, in 16 bits
    write_json(options.out / f"{options.name}.json", report)
    if options.before != "none":
        before = json.loads(Path(options.before).read_text())["scores"] if options.before else measure("base")
        write_card(folder, report, before, BASE_NAME)


def run_score(options) -> None:
    name = Path(options.model).name
    setting, say = Setting(options), say_as(name)
    scores = score(setting.load(options.model), setting.base.tokenizer, setting.base.end_token, options.data,
                   list(MEASURES), options.limit, True, say)
    write_json(options.out / f"{name}.json", {"name": name, "scores": scores})


def run_pair(options) -> None:
    setting, found = Setting(options), []
    examples = read_qa(options.data, "hotpotqa.test")[:options.limit]
    receiver = setting.load(options.receiver)
    if receiver.lora is not None and receiver.lora.invocation is not None:
        raise SystemExit(f"{options.receiver}: an activated LoRA takes the base's cache exactly; expected another receiver")
    for path in options.senders:
        begin = time.time()
        plans = measure_reuse(receiver, setting.load(path), setting.base.tokenizer, setting.base.end_token, examples,
                              REUSE_BLOCKS)
        found.append({"receiver": options.receiver, "sender": path, "rows": len(examples), "plans": plans})
        print(f"{options.receiver} from {path} ({time.time() - begin:.0f} s): " + "; ".join(
            f"{p['recomputed']} F1 {p['f1']} KL {p['kl']}" for p in plans), flush=True)
        write_json(options.out / "pairs.json", found)


def run_check(options) -> None:
    from variants.peft_check import greatest_difference  # needs transformers and peft

    setting = Setting(options)
    setting.device, setting.compute = torch.device("cpu"), torch.float32
    prompt = read_qa(options.data, "hotpotqa.profile")[0].prompt
    for folder in options.folders:
        found = greatest_difference(setting.base, setting.load(str(folder)), folder, prompt)
        print(f"{folder}: {json.dumps(found)}", flush=True)
        if found["difference"] > 0.01:
            raise SystemExit(f"{folder}: PEFT's logits differ by {found['difference']}, expected at most 0.01")


def questions_of(path: Path | None) -> set[str]:
    return {row.request for row in read_qa(path.parent, path.name.removesuffix(".jsonl.gz"))} if path else set()


def run_rows(options) -> None:
    """Rows of a task in the QA shape that nothing was trained on (`fit`: contexts of training questions, for maps alone)."""
    task = make_task(options.task, options.data, options.fold, options.most_of_article)
    if options.draws and not hasattr(task, "drawn_rows"):
        raise SystemExit(f"--draws: {options.task} has none")
    if options.part not in task.measured:
        raise SystemExit(f"{options.part}: {options.task} has no such rows")
    made = task.drawn_rows(options.part, options.draws) if options.draws else enumerate(task.rows(options.part))
    asked = questions_of(options.without)
    rows = [example.as_row(name, options.task) for name, example in made if example.request not in asked][:options.count]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    options.out.write_bytes(gzip.compress(text, mtime=0) if options.out.suffix == ".gz" else text)
    print(f"{len(rows)} rows written to {options.out}")


def run_all(options) -> None:
    """One process per variant, and one for the scores of the base. Kernels of different processes overlap on a GPU only
    under the multi-process service: run `nvidia-cuda-mps-control -d` before."""
    options.out.mkdir(parents=True, exist_ok=True)
    common = ["--gguf", options.gguf, "--data", options.data, "--out", options.out, "--limit", options.limit]
    extra = ["--before", "none"]  # the cards are written at the end, with one score of the base
    extra += ["--steps", options.steps] if options.steps else []
    extra += ["--compile"] if options.compile else []
    commands = {name: ["train", name, *common, *extra] for name in options.names}
    commands["base"] = ["score", "base", *common]
    running = {name: subprocess.Popen([sys.executable, __file__, *map(str, command)])
               for name, command in commands.items()}
    failed = [name for name, process in running.items() if process.wait() != 0]
    reports = [json.loads((options.out / f"{name}.json").read_text()) for name in running if name not in failed]
    write_json(options.out / "scores.json", reports)
    base = next((report for report in reports if report["name"] == "base"), None)
    for report in reports:
        if base is not None and "recipe" in report:
            write_card(options.out / report["name"], report, base["scores"], BASE_NAME)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, run, text, models=True):
        added = commands.add_parser(name, help=text, description=text, epilog=EXAMPLE,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        added.set_defaults(run=run)
        added.add_argument("--data", type=Path, required=True, help="folder of the data sets")
        added.add_argument("--out", type=Path, required=True, help="where results go")
        if models:
            added.add_argument("--gguf", type=Path, required=True, help="the base model")
            added.add_argument("--limit", type=int, default=1000, help="at most this many rows per score; 0 with `train`: no scores, no card")
        return added

    def training(added):
        added.add_argument("--steps", type=int, help="instead of the recipe's")
        added.add_argument("--compile", action="store_true", help="fuse with torch.compile: a minute at first, then faster")

    everything = command("all", run_all, "train and score all variants side by side")
    everything.add_argument("--names", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    training(everything)
    one = command("train", run_train, "train and score one variant")
    one.add_argument("name", help=f"a name for the variant; the recipe's unless --recipe is given: {', '.join(RECIPES)}")
    one.add_argument("--recipe", choices=list(RECIPES))
    one.add_argument("--seed", type=int)
    one.add_argument("--learning-rate", type=float)
    one.add_argument("--fold", type=int, choices=list(TEST_REMAINDERS), default=0, help="which articles are kept for tests (qa)")
    one.add_argument("--before", help="scores of the base from an earlier `score base`, for the model card; `none`: no card")
    training(one)
    scored = command("score", run_score, "score a model on every task")
    scored.add_argument("model", help="`base`, a PEFT folder, or the Hugging Face folder of a full fine-tune")
    pair = command("pair", run_pair, "what a receiver keeps of its quality with senders' caches (HotpotQA)")
    pair.add_argument("receiver")
    pair.add_argument("senders", nargs="+", help="`base`, PEFT or Hugging Face folders, like the receiver")
    check = command("check", run_check, "compare PEFT folders with peft and transformers on a CPU")
    check.add_argument("folders", nargs="+", type=Path)
    rows = command("rows", run_rows, "write rows of a task in the QA shape that nothing is trained on", models=False)
    rows.add_argument("task", choices=list(TASKS))
    rows.add_argument("part", choices=["profile", "test", "fit"])
    rows.add_argument("--fold", type=int, choices=list(TEST_REMAINDERS), default=0, help="which articles are kept for tests (qa)")
    rows.add_argument("--draws", type=int, nargs="+", help="each question once for each of these numbers, among other documents")
    rows.add_argument("--most-of-article", type=int, help="questions of one article at most (qa; default: 200)")
    rows.add_argument("--without", type=Path, help="a .jsonl.gz file of rows whose questions are left out")
    rows.add_argument("--count", type=int, help="the first so many (default: all)")
    options = parser.parse_args(arguments)
    if options.command == "train" and (options.recipe or options.name) not in RECIPES:
        one.error(f"no recipe named {options.name}; give --recipe, one of {', '.join(RECIPES)}")
    return options


if __name__ == "__main__":
    chosen = parse()
    chosen.run(chosen)
