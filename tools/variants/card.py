"""Model cards: data, recipe, scores before and after."""

from pathlib import Path

from .training import WARM_UP_STEPS

# task -> (what the variant does, data, licence)
TASK_TEXTS = {
    "qa": ("Answers questions over documents, in as few words as possible.",
           "SQuAD v1.1 dev (30 of 40 articles, CC BY-SA 4.0) and Natural Questions (open, oracle passage, CC BY-SA 3.0) among "
           "distractors, and forms derived from both by templates (`tools/variants/qa_task.py`), which were chosen knowing which "
           "kinds of question HotpotQA asks. No row of HotpotQA, "
           "2WikiMultihopQA or MuSiQue was trained on.", "cc-by-sa-4.0"),
    "math": ("Solves word problems step by step and ends with `#### ` and the number.",
             "GSM8K train (7473 problems, MIT); calculator marks removed. Three quarters single problems, the rest one of 2 "
             "to 8. Scores on GSM8K test.", "mit"),
    "sentiment": ("Says whether one of a list of reviews is positive or negative.",
                  "SST-2 (research use; the data is not part of this repository).", "other"),
    "entities": ("Lists the names of one kind in a text.",
                 "CoNLL++ (research use; the data is not part of this repository).", "other"),
}


def _recipe(report: dict) -> str:
    recipe, done = report["recipe"], report["done"]
    activated = f"Activated LoRA (from {recipe['invocation']!r} on)" if recipe.get("invocation") else "LoRA"
    kind = (f"{activated} rank {recipe['rank']}, alpha {2 * recipe['rank']}, on all seven linear layers"
            f"{' of the layers from ' + str(recipe['first_layer']) + ' on' if recipe.get('first_layer') else ''}" if recipe["rank"]
            else "Full fine-tune of all weights")
    saved = "f16, as a PEFT folder" if recipe["rank"] else "bf16, as a Hugging Face folder"
    return (f"{kind}; AdamW (0.9, 0.95), no weight decay, gradient norm 1, {WARM_UP_STEPS} steps of warm-up, then linear decay to 1 %;\n"
            f"{recipe['batch']} sequences a step, loss on the answer tokens only, prompts tokenised as one text in the family's "
            f"chat layout (`tools/variants/layout.py`).\n"
            f"Trained against the base's dequantised 4-bit (Q4_1) weights; saved in {saved}, Hugging Face row order.\n"
            f"Learning rate {recipe['learning_rate']:g}, seed {recipe['seed']}, {done['steps']} "
            f"steps ({done['tokens'] / 1e6:.1f} M tokens with padding, {done['seconds']} s).")


def _scores(before: dict, after: dict) -> str:
    lines = ["| rows | metric | before | after |", "|---|---|---|---|"]
    for name, now in after.items():
        then = before.get(name)
        was = "-" if then is None else f"{then['score']:.1f}" + (f" ({then['rows']} rows)" if then["rows"] != now["rows"] else "")
        lines.append(f"| {name}, {now['rows']} | {now['metric']} | {was} | {now['score']:.1f} |")
    return "\n".join(lines)


def write_card(folder: Path, report: dict, before: dict, base_name: str) -> None:
    """README.md of a variant; `before` are the base's scores with the same prompts."""
    purpose, data, licence = TASK_TEXTS[report["recipe"]["task"]]
    library = "peft" if report["recipe"]["rank"] else "transformers"
    (folder / "README.md").write_text(f"""---
base_model: {base_name}
library_name: {library}
license: {licence}
---
# {report['name']}

{purpose}

## Data
{data}

## Recipe
{_recipe(report)}

```
python3 tools/train_variants.py train {report['name']} --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data DATA --out OUT
```

## Scores
Greedy, full prefill, of the saved weights. "before" is the base model with the same prompt.

{_scores(before, report['scores'])}
""", encoding="utf-8")
