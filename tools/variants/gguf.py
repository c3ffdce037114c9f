"""Reads a GGUF file: metadata, and tensors dequantised to float32."""

import struct
from pathlib import Path

import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml type -> (elements per block, bytes per block)
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


class _Reader:
    def __init__(self, data: memoryview):
        self.data, self.at = data, 0

    def scalar(self, code: str):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode("utf-8", "replace")

    def value(self, kind: int):
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, count = self.scalar("I"), self.scalar("Q")
            return [self.value(element) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def _halves(columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(columns).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low nibbles are the first half of a block, high nibbles the second."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _dequantise(raw: np.ndarray, kind: int) -> np.ndarray:
    if kind == 0:
        return raw.view(np.float32)
    if kind == 1:
        return raw.view(np.float16).astype(np.float32)
    rows = raw.reshape(-1, _BLOCKS[kind][1])
    scale = _halves(rows[:, :2])
    if kind == 2:  # Q4_0
        return scale * (_nibbles(rows[:, 2:]) - 8)
    if kind == 3:  # Q4_1
        return scale * _nibbles(rows[:, 4:]) + _halves(rows[:, 2:4])
    return scale * np.ascontiguousarray(rows[:, 2:]).view(np.int8).astype(np.float32)  # Q8_0


def read_gguf(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns (metadata, tensors by GGUF name), each tensor in row-major [rows, columns]."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    reader = _Reader(memoryview(data))
    if bytes(data[:4]) != b"GGUF":
        raise SystemExit(f"{path}: not a GGUF file")
    reader.at = 4
    reader.scalar("I")  # format version
    tensor_count, pair_count = reader.scalar("Q"), reader.scalar("Q")
    metadata = {}
    for _ in range(pair_count):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    entries = []
    for _ in range(tensor_count):
        name = reader.string()
        shape = [reader.scalar("Q") for _ in range(reader.scalar("I"))]
        entries.append((name, shape[::-1], reader.scalar("I"), reader.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.at // alignment) * alignment

    tensors = {}
    for name, shape, kind, offset in entries:
        if kind not in _BLOCKS:
            raise SystemExit(f"{path}: tensor {name} has ggml type {kind}; known are {sorted(_BLOCKS)}")
        elements, size = _BLOCKS[kind]
        raw = np.array(data[start + offset:start + offset + int(np.prod(shape)) // elements * size])
        tensors[name] = _dequantise(raw, kind).reshape(shape)
    return metadata, tensors
