#!/usr/bin/env python3
"""Makes a random GGUF model of a real shape, for speed alone, and the family.json that names it.

    python3 tools/make_random_gguf.py --shape 8b --type q4_k_m --out /dev/shm/8b-q4
    python3 tools/make_random_gguf.py --shape mixtral --type q4_0 --vocab-size 32000 --out /dev/shm/mixtral-q4  # 26 GB

A matrix is the same few random blocks over and over. The tokenizer has a token for each byte, and names for the rest of
the vocabulary: only token ids matter here. Needs nothing but Python."""
import argparse
import json
import random
import struct
import time
from collections import namedtuple
from pathlib import Path

import own_folder

# ffn: width of the FFN, or of each of the experts, of which a token has per_token.
Shape = namedtuple("Shape", "layers width heads kv_heads head_dim ffn experts per_token", defaults=(0, 0))
SHAPES = {
    "70b": Shape(80, 8192, 64, 8, 128, 28672),
    "8b": Shape(32, 4096, 32, 8, 128, 14336),
    "1b": Shape(16, 2048, 32, 8, 64, 8192),
    "tiny": Shape(2, 256, 4, 2, 64, 512),
    "mixtral": Shape(32, 4096, 32, 8, 128, 14336, 8, 2),
    "tiny-experts": Shape(2, 256, 4, 2, 64, 512, 4, 2),
}
TYPES = {"f32": 0, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_k": 12, "q6_k": 14, "bf16": 30}  # numbers in the file
BLOCKS = {"f32": (1, 4), "bf16": (1, 2), "q4_0": (32, 18), "q4_1": (32, 20), "q8_0": (32, 34), "q4_k": (256, 144),
          "q6_k": (256, 210)}  # elements, bytes
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q4_k": 14, "q4_k_m": 15, "q6_k": 18, "bf16": 32}  # of most of a file's tensors
ALIGNMENT = 32
PATTERN_BLOCKS = 4099  # a prime: rows differ
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def block_of(kind, deviation, source):
    """One block of random quants under scales that give this deviation."""
    half = lambda value: struct.pack("<e", value)
    if kind == "q4_0":
        return half(deviation / 4.6) + source.randbytes(16)
    if kind == "q4_1":
        return half(deviation / 4.6) + half(-7.5 * deviation / 4.6) + source.randbytes(16)
    if kind == "q8_0":
        return half(deviation / 73.9) + source.randbytes(32)
    if kind == "q4_k":  # eight scales 32 and eight minima 60, which count four times as much: the mean is 0
        unit = deviation / (32 * 4.6)
        return half(unit) + half(4 * unit) + b"\xa0" * 4 + b"\xfc" * 4 + b"\xc0" * 4 + source.randbytes(128)
    if kind == "q6_k":
        return source.randbytes(192) + bytes([32] * 16) + half(deviation / (32 * 18.5))
    value = struct.pack("<f", source.gauss(0, deviation))
    return value if kind == "f32" else value[2:]


class Tensor:
    """A matrix, `count` of them one behind the other, or without rows a norm."""

    def __init__(self, name, kind, columns, rows=None, gain=1.0, count=None):
        self.name, self.kind, self.columns, self.rows, self.gain, self.count = name, kind, columns, rows, gain, count
        elements, size = BLOCKS[kind]
        self.bytes = columns * (rows or 1) * (count or 1) // elements * size

    def header(self, offset):
        sizes = [size for size in (self.columns, self.rows, self.count) if size]
        return (text(self.name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
                + struct.pack("<IQ", TYPES[self.kind], offset))

    def write(self, file, patterns):
        if self.rows is None:
            return file.write(struct.pack("<f", 1.0) * self.columns)
        key = (self.kind, self.gain / self.columns**0.5)
        if key not in patterns:
            source = random.Random(len(patterns))
            patterns[key] = b"".join(block_of(*key, source) for _ in range(PATTERN_BLOCKS)) * 16
        whole, rest = divmod(self.bytes, len(patterns[key]))
        for _ in range(whole):
            file.write(patterns[key])
        file.write(patterns[key][:rest])


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    packed = {UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}
    data = text(value) if kind == STRING else struct.pack(packed[kind], value)
    return text(key) + struct.pack("<I", kind) + data


def array(key, kind, values):
    data = b"".join(text(value) if kind == STRING else struct.pack("<i", value) for value in values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + data


def byte_tokens():
    """The 256 characters that stand for bytes in byte-level tokenizers, the only merge, the end of a text."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    return [names[byte] for byte in range(256)] + ["ab", "<end>"]


def more_bits(layer, layers):
    """Whether llama.cpp's Q4_K_M has the layer's `attn_v` and `ffn_down` in six bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def metadata(shape, kind, vocab_size):
    sizes = {"block_count": shape.layers, "embedding_length": shape.width, "attention.head_count": shape.heads,
             "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_dim,
             "attention.value_length": shape.head_dim, "feed_forward_length": shape.ffn, "context_length": 131072,
             "rope.dimension_count": shape.head_dim}
    if shape.experts:
        sizes |= {"expert_count": shape.experts, "expert_used_count": shape.per_token}
    tokens = byte_tokens()
    tokens += [f"<{i}>" for i in range(len(tokens), vocab_size)]
    return ([pair("general.architecture", STRING, "llama"), pair("tokenizer.ggml.model", STRING, "gpt2"),
             pair("tokenizer.ggml.pre", STRING, "llama-bpe"), pair("general.file_type", UINT32, FILE_TYPES[kind]),
             pair("general.quantization_version", UINT32, 2), pair("llama.vocab_size", UINT32, vocab_size)]
            + [pair(f"llama.{key}", UINT32, size) for key, size in sizes.items()]
            + [pair("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
               pair("llama.rope.freq_base", FLOAT32, 500000.0),
               array("tokenizer.ggml.tokens", STRING, tokens),
               array("tokenizer.ggml.token_type", INT32, [1] * 257 + [3] * (len(tokens) - 257)),
               array("tokenizer.ggml.merges", STRING, ["a b"]),
               pair("tokenizer.ggml.bos_token_id", UINT32, 257), pair("tokenizer.ggml.eos_token_id", UINT32, 257),
               pair("tokenizer.ggml.padding_token_id", UINT32, 257), pair("tokenizer.ggml.unknown_token_id", UINT32, 257),
               pair("tokenizer.ggml.add_bos_token", BOOL, False)])


def tensors_of(shape, kind, vocab_size):
    layers, width, heads, kv_heads, head_dim, ffn, experts, _ = shape
    is_mixed = kind == "q4_k_m"  # as such files are: a part of the matrices is finer
    kind = "q4_k" if is_mixed else kind
    finer = "q6_k" if is_mixed else kind
    tensors = [Tensor("token_embd.weight", kind, width, vocab_size, width**0.5),
               Tensor("output.weight", finer, width, vocab_size), Tensor("output_norm.weight", "f32", width)]
    for layer in range(layers):
        of_some = finer if more_bits(layer, layers) else kind
        prefix = f"blk.{layer}."
        tensors += [Tensor(prefix + "attn_norm.weight", "f32", width), Tensor(prefix + "ffn_norm.weight", "f32", width),
                    Tensor(prefix + "attn_q.weight", kind, width, heads * head_dim),
                    Tensor(prefix + "attn_k.weight", kind, width, kv_heads * head_dim),
                    Tensor(prefix + "attn_v.weight", of_some, width, kv_heads * head_dim),
                    Tensor(prefix + "attn_output.weight", kind, heads * head_dim, width, 0.2)]
        if experts:
            tensors += [Tensor(prefix + "ffn_gate_inp.weight", "f32", width, experts)]
        suffix = "_exps.weight" if experts else ".weight"
        tensors += [Tensor(prefix + "ffn_gate" + suffix, kind, width, ffn, count=experts),
                    Tensor(prefix + "ffn_up" + suffix, kind, width, ffn, count=experts),
                    Tensor(prefix + "ffn_down" + suffix, of_some, ffn, width, 0.2, count=experts)]
    return tensors


def read_share(tensor, shape, tokens):
    """What a step of so many tokens reads of a tensor, if routers choose evenly: experts that no token has stay unread."""
    if tensor.name == "token_embd.weight":
        return 0.0
    return 1 - (1 - shape.per_token / shape.experts) ** tokens if "_exps" in tensor.name else 1.0


def write_model(path, shape, kind, vocab_size):
    pairs = metadata(shape, kind, vocab_size)
    tensors = tensors_of(shape, kind, vocab_size)
    offset = 0
    headers = []
    for tensor in tensors:
        headers.append(tensor.header(offset))
        offset += (tensor.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    patterns = {}
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(headers))
        for tensor in tensors:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            tensor.write(file, patterns)
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
    return path.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--type", choices=["bf16", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "q4_k_m"], default="q4_k_m")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=128256)
    options = parser.parse_args()
    begin = time.monotonic()
    own_folder.take(options.out, ["base.gguf", "family.json"])
    total = write_model(options.out / "base.gguf", SHAPES[options.shape], options.type, options.vocab_size)
    family = {"name": f"random-{options.shape}", "base": {"name": "base", "path": "base.gguf"}, "variants": []}
    (options.out / "family.json").write_text(json.dumps(family, indent=2) + "\n")
    print(f"{options.out}: {total / 1e9:.1f} GB, {options.type}, vocabulary {options.vocab_size}, "
          f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
