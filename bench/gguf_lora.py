"""PEFT adapters of Llama models as GGUF files, the way llama.cpp wants them. No packages needed."""
import json
import struct

MODULES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
           "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
KINDS = {"F32": 0, "F16": 1, "BF16": 30}
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
ALIGNMENT = 32


def read_safetensors(path):
    """Name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    header_size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + header_size])
    body = memoryview(data)[8 + header_size:]
    return {name: (entry["dtype"], entry["shape"], bytes(body[slice(*entry["data_offsets"])]))
            for name, entry in header.items() if name != "__metadata__"}


def interleave_heads(rows, row_bytes, num_heads):
    """Rows of q and k as GGUF orders them: the two halves of every head take turns."""
    count = len(rows) // row_bytes
    half = count // num_heads // 2
    order = [head * 2 * half + part * half + i for head in range(num_heads) for i in range(half) for part in range(2)]
    return b"".join(rows[row * row_bytes:(row + 1) * row_bytes] for row in order)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def field(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def convert(folder, path, num_heads, num_kv_heads):
    """`num_heads`: of the base model, whose q and k the adapter changes."""
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    tensors = []
    for name, (dtype, shape, data) in read_safetensors(folder / "adapter_model.safetensors").items():
        layer, rest = name.split("layers.")[1].split(".", 1)
        module, part = rest.rsplit(".lora_", 1)
        target = MODULES[module]
        side = part[0].lower()
        if side == "b" and target in ("attn_q", "attn_k"):
            data = interleave_heads(data, shape[1] * ELEMENT_BYTES[dtype], num_heads if target == "attn_q" else num_kv_heads)
        tensors.append((f"blk.{layer}.{target}.weight.lora_{side}", dtype, shape, data))
    string, float32 = 8, 6
    fields = [field("general.architecture", string, text("llama")), field("general.type", string, text("adapter")),
              field("adapter.type", string, text("lora")), field("adapter.lora.alpha", float32, struct.pack("<f", alpha))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields)
    body = bytearray()
    for name, dtype, shape, data in tensors:
        head += text(name) + struct.pack("<IQQIQ", 2, shape[1], shape[0], KINDS[dtype], len(body))
        body += data + bytes(-len(data) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + body)
