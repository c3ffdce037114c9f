"""A family for PyTorch: its base, its variants with adapters merged, and the maps of its plan books."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from variants.adapter import load_adapter  # noqa: E402
from variants.base import Base, load_base  # noqa: E402
from variants.checkpoint import load_checkpoint  # noqa: E402
from variants.llama import Llama, rotate  # noqa: E402


@dataclass
class LowRankMap:
    """x becomes x + up (down x) + bias."""

    down: torch.Tensor  # [rank, columns]
    up: torch.Tensor    # [columns, rank]
    bias: torch.Tensor  # [columns]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + (rows @ self.down.T) @ self.up.T + self.bias


class Maps:
    """Translation maps of a plan book (docs/plan_book.md)."""

    def __init__(self, path: Path, device):
        tensors = {name: tensor.to(device, torch.float32) for name, tensor in load_file(path).items()}
        stems = {name.rsplit(".", 1)[0] for name in tensors}
        self.maps = {stem: LowRankMap(*(tensors[f"{stem}.{part}"] for part in ("down", "up", "bias"))) for stem in stems}

    def has_input(self, layer: int) -> bool:
        return f"input.{layer}" in self.maps

    def layer_input(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        found = self.maps.get(f"input.{layer}")
        return hidden if found is None else found(hidden.float())

    def keys_and_values(self, layer: int, keys, values, rope):
        """K/V [batch, heads, tokens, width] of a layer; maps see K before RoPE."""
        found = self.maps.get(f"kv.{layer}")
        if found is None:
            return keys, values
        cosine, sine = rope
        flat = lambda x: x.transpose(1, 2).flatten(2)  # [batch, tokens, heads * width]
        rows = found(torch.cat([flat(rotate(keys.float(), cosine, -sine)), flat(values.float())], dim=-1))
        back = lambda x: x.unflatten(2, (keys.shape[1], keys.shape[3])).transpose(1, 2)
        new_keys, new_values = rows.chunk(2, dim=-1)
        return rotate(back(new_keys), cosine, sine).to(keys.dtype), back(new_values).to(values.dtype)


class Family:
    def __init__(self, path: Path, device: torch.device, compute: torch.dtype):
        self.file = path / "family.json" if path.is_dir() else path
        self.content = json.loads(self.file.read_text())
        self.device, self.compute = device, compute
        self.base: Base = load_base(self._at(self.content["base"]["path"]))

    def _at(self, relative: str) -> Path:
        return self.file.parent / relative

    def variant(self, name: str) -> Llama:
        members = {member["name"]: member for member in self.content.get("variants", [])}
        if name != self.content["base"]["name"] and name not in members:
            raise SystemExit(f"{self.file}: no variant \"{name}\"; there are {', '.join(members)}")
        member = members.get(name, {})
        base = load_checkpoint(self._at(member["path"]), self.base) if "path" in member else self.base
        model = Llama(base, self.compute)
        model.lora = load_adapter(base, self._at(member["adapter"])) if "adapter" in member else None
        return model.to(self.device).requires_grad_(False)

    def maps(self, sender: str, receiver: str) -> Maps | None:
        """Maps of the pair's plan book, by the names it carries; the product compares digests, this does not."""
        for relative in self.content.get("plan_books", []):
            book = json.loads(self._at(relative).read_text())
            if (book["sender"]["name"], book["receiver"]["name"]) == (sender, receiver) and book.get("maps"):
                return Maps(self._at(relative).parent / book["maps"], self.device)
        return None
