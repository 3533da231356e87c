"""Reads a safetensors file into PyTorch tensors."""

import json
import struct

import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load(path):
    """Tensors by name."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data[begin:end] or bytearray(8), dtype=DTYPES[entry["dtype"]])
        count = 1
        for size in entry["shape"]:
            count *= size
        tensors[name] = flat[:count].reshape(entry["shape"])
    return tensors
