#!/usr/bin/env python3
"""Makes tests/data/formats/ and the seeds in tests/fuzz/corpus/{gguf,gguf_adapter,quantized,safetensors}/.

    pip install gguf safetensors numpy ml_dtypes
    python3 tools/make_format_goldens.py

Each <type>.gguf holds a tensor `weight` in that type and a tensor `expected` (f32), what the `gguf`
package makes of it; the tests want equal bits. Values are random from a fixed seed, so that running
it again changes nothing.
"""

import json
import pathlib
import shutil
import struct

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ROOT / "tests/data/formats"
CORPUS = ROOT / "tests/fuzz/corpus"
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS",
         "MXFP4"]
# Byte positions of the f16 scales inside a block of the types that the package cannot quantise to.
K_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
            "MXFP4": ()}


def random_k_blocks(name, rows, blocks, rng):
    """Random bits with scales that are finite and of both signs."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for position in K_SCALES[name]:
        scale = rng.normal(0, 0.01, (rows, blocks)).astype(np.float16)
        data[:, :, position : position + 2] = scale[..., None].view(np.uint8)
    return data.reshape(rows, blocks * size)


def make_weight(name, rng):
    """Raw data as the writer wants it, and the values it stands for."""
    dtype = gguf.GGMLQuantizationType[name]
    if name in K_SCALES:
        raw = random_k_blocks(name, 2, 2, rng)
    else:
        raw = gguf.quants.quantize(rng.normal(0, 0.2, (3, 64)).astype(np.float32), dtype)
    return raw, np.ascontiguousarray(gguf.quants.dequantize(raw, dtype), dtype=np.float32)


def write_gguf(path, fill, **options):
    writer = gguf.GGUFWriter(path, "llama", **options)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_type(name):
    raw, expected = make_weight(name, np.random.default_rng(sum(name.encode())))

    def fill(writer):
        writer.add_tensor("weight", raw, raw_dtype=gguf.GGMLQuantizationType[name])
        writer.add_tensor("expected", expected)

    write_gguf(FORMATS / f"{name.lower()}.gguf", fill)


def write_metadata():
    """Every value type, arrays and an alignment of its own."""

    def fill(writer):
        writer.add_uint8("test.uint8", 200)
        writer.add_int8("test.int8", -100)
        writer.add_uint16("test.uint16", 60000)
        writer.add_int16("test.int16", -30000)
        writer.add_uint32("test.uint32", 4_000_000_000)
        writer.add_int32("test.int32", -2_000_000_000)
        writer.add_uint64("test.uint64", 2**64 - 1)
        writer.add_int64("test.int64", -(2**63))
        writer.add_float32("test.float32", 0.25)
        writer.add_float64("test.float64", 1e300)
        writer.add_bool("test.bool", True)
        writer.add_string("test.string", "gr\u00fc\u00dfe")
        writer.add_array("test.ints", [1, -2, 3])
        writer.add_array("test.floats", [0.5, -1.5])
        writer.add_array("test.bools", [True, False])
        writer.add_array("test.strings", ["a", "", "\u4f60\u597d"])
        writer.add_custom_alignment(64)
        writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
        writer.add_tensor("vector", np.arange(5, dtype=np.float32))

    write_gguf(FORMATS / "metadata.gguf", fill)
    write_gguf(FORMATS / "big_endian.gguf", fill, endianess=gguf.GGUFEndian.BIG)


def write_version_2():
    """Little-endian version 2 has the layout of version 3."""
    data = bytearray((FORMATS / "q8_0.gguf").read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (FORMATS / "version_2.gguf").write_bytes(data)


def write_safetensors(path, tensors, metadata=None):
    arrays = {name: values.astype(dtype) for name, (dtype, values) in tensors.items()}
    path.write_bytes(safetensors.numpy.save(arrays, metadata))


def write_safetensors_files():
    grid = np.arange(-6, 6).reshape(3, 4) * 0.25
    tensors = {
        "full": ("float32", grid),
        "half": ("float16", grid),
        "brain": (ml_dtypes.bfloat16, grid),
        "positions": ("int64", np.arange(3)),
        "scalar": ("float32", np.array(7.0)),
        "empty": ("float32", np.zeros((0, 4))),
    }
    write_safetensors(FORMATS / "model.safetensors", tensors, {"format": "pt"})
    folder = FORMATS / "sharded"
    folder.mkdir()
    shards = [{"a": ("float32", grid), "b": ("float16", grid)}, {"c": (ml_dtypes.bfloat16, grid)}]
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shard)
        weight_map |= {tensor: name for tensor in shard}
    index = {"metadata": {"total_size": 12 * (4 + 2 + 2)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def gguf_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_bytes(keys=(), tensors=(), num_keys=None, num_tensors=None):
    """A GGUF file by hand; `keys` and `tensors` are entries as bytes."""
    counts = struct.pack(
        "<QQ",
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    data = b"GGUF" + struct.pack("<I", 3) + counts + b"".join(keys) + b"".join(tensors)
    return data + bytes(-len(data) % 32) + bytes(64)


def gguf_tensor(name, dims, number, offset):
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return gguf_text(name) + shape + struct.pack("<IQ", number, offset)


def write_gguf_seeds():
    """What mutation finds slowly: huge counts and lengths, nested arrays, overflowing dimensions."""
    array = struct.pack("<I", 9)
    seeds = {
        "huge_tensor_count": gguf_bytes(num_tensors=2**63),
        "huge_key_count": gguf_bytes(num_keys=2**64 - 1),
        "huge_string": gguf_bytes([gguf_text("k") + struct.pack("<IQ", 8, 2**63)]),
        "huge_array": gguf_bytes([gguf_text("k") + array + struct.pack("<IQ", 8, 2**61)]),
        "nested_array": gguf_bytes([gguf_text("k") + array * 2 + struct.pack("<Q", 1) + array]),
        "overflowing_shape": gguf_bytes(tensors=[gguf_tensor("t", [2**32, 2**32], 0, 0)]),
        "wrapping_offset": gguf_bytes(tensors=[gguf_tensor("t", [4], 0, 2**64 - 32)]),
        "overlap": gguf_bytes(tensors=[gguf_tensor(n, [16], 0, 0) for n in "ab"]),
        "two_blocks": gguf_bytes(tensors=[gguf_tensor("a", [32], 8, 0)]),
    }
    for name, data in seeds.items():
        (CORPUS / "gguf" / name).write_bytes(data)
    for name in ["metadata", "q4_1", "q8_0", "version_2"]:
        shutil.copy(FORMATS / f"{name}.gguf", CORPUS / "gguf" / name)


def safetensors_bytes(header, data=b""):
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors_seeds():
    def one(shape, begin, end, dtype="F32"):
        return f'{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}'

    seeds = {
        "huge_header": struct.pack("<Q", 2**63) + b"{}",
        "overflowing_shape": safetensors_bytes(one([2**32, 2**32], 0, 0)),
        "negative_shape": safetensors_bytes(one([-1], 0, 4), bytes(4)),
        "reversed_offsets": safetensors_bytes(one([1], 4, 0), bytes(4)),
        "repeated_name": safetensors_bytes('{"a":1,"a":2}'),
        "deep": safetensors_bytes("[" * 2000),
        "unknown_dtype": safetensors_bytes(one([3], 0, 3, "F6"), bytes(3)),
        "minimal": safetensors_bytes(one([2], 0, 8), bytes(8)),
        "no_tensors": safetensors_bytes("{}"),
    }
    for name, data in seeds.items():
        (CORPUS / "safetensors" / name).write_bytes(data)
    shutil.copy(FORMATS / "model.safetensors", CORPUS / "safetensors/model")


def write_model_seeds():
    """A linear layer of 8 rows and 32 columns in each layout, behind its quantization_config; adapters in GGUF."""
    sizes = {"I32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1, "F16": 2, "F32": 4, "BF16": 2}

    def seed(config, tensors):
        header, data = {}, b""
        for name, (dtype, shape) in tensors.items():
            count = int(np.prod(shape)) * sizes[dtype]
            values = struct.pack("<2q", 8, 32) if name == "weight_shape" else bytes(i * 37 % 120 for i in range(count))
            values = bytes(count) if name.endswith("g_idx") else values
            header["m." + name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
            data += values
        return json.dumps(config).encode() + b"\0" + safetensors_bytes(json.dumps(header), data)

    def compressed(form, weights):
        return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"a": {"weights": weights}}}

    seeds = {
        "gptq": seed({"quant_method": "gptq", "bits": 4, "group_size": 16}, {
            "qweight": ("I32", [4, 8]), "qzeros": ("I32", [2, 1]), "scales": ("F16", [2, 8]), "g_idx": ("I32", [32])}),
        "awq": seed({"quant_method": "awq", "bits": 4, "group_size": 32}, {
            "qweight": ("I32", [32, 1]), "qzeros": ("I32", [1, 1]), "scales": ("F16", [1, 8])}),
        "packed": seed(compressed("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}), {
            "weight_packed": ("I32", [8, 4]), "weight_scale": ("BF16", [8, 1]), "weight_shape": ("I64", [2]),
            "weight_zero_point": ("I32", [1, 1])}),
        "int8": seed(compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}), {
            "weight": ("I8", [8, 32]), "weight_scale": ("F32", [8, 1])}),
        "fp8": seed({"quant_method": "fp8", "weight_block_size": [4, 16]}, {
            "weight": ("F8_E4M3", [8, 32]), "weight_scale_inv": ("F32", [2, 2])}),
    }
    for name, data in seeds.items():
        (CORPUS / "quantized" / name).write_bytes(data)
    small = gguf.GGUFWriter(CORPUS / "gguf_adapter" / "small", "granite")
    small.add_type("adapter")
    small.add_string("adapter.type", "lora")
    small.add_float32("adapter.lora.alpha", 2.0)
    small.add_array("adapter.alora.invocation_tokens", [5, 9])
    small.add_tensor("blk.1.attn_k.weight.lora_a", np.full((1, 32), 0.25, np.float32))
    small.add_tensor("blk.1.attn_k.weight.lora_b", np.full((16, 1), 0.5, np.float16))
    small.write_header_to_file()
    small.write_kv_data_to_file()
    small.write_tensors_to_file()
    small.close()
    for name in ("granite", "mixtral"):
        shutil.copy(ROOT / f"tests/data/models/{name}/adapter.gguf", CORPUS / "gguf_adapter" / name)


def main():
    for path in FORMATS.glob("*.gguf"):  # samples of the store's format stay
        path.unlink()
    for folder in [CORPUS / name for name in ("gguf", "gguf_adapter", "quantized", "safetensors")]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in TYPES:
        write_type(name)
    write_metadata()
    write_version_2()
    write_safetensors_files()
    write_gguf_seeds()
    write_safetensors_seeds()
    write_model_seeds()


if __name__ == "__main__":
    main()
