"""Reads and writes safetensors files with numpy alone.

A file is an 8-byte little-endian header length, a JSON header padded with spaces to a
multiple of 8, and the tensors' bytes. Tensors are written in name order, so equal content
gives equal bytes.

numpy has no bfloat16: such a tensor is read as float32 (every bf16 value is a float32 value)
and written by asking for it with `BF16(array)`.
"""

import json
import struct

import numpy as np

NUMPY_TYPE = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
TENSOR_TYPE = {dtype: name for name, dtype in NUMPY_TYPE.items()}


class BF16:
    """Marks an array to be stored as bfloat16, rounded to nearest even."""

    def __init__(self, array):
        self.array = np.asarray(array, np.float32)


def bf16_bits(array):
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40  # rounding could carry a NaN's mantissa over to Inf
    return np.where(np.isnan(array), quiet_nan, rounded).astype("<u2")


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read(path):
    """The tensors of a file by name, and its metadata."""
    with open(path, "rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        stored = np.dtype("<u2") if entry["dtype"] == "BF16" else NUMPY_TYPE[entry["dtype"]]
        array = np.frombuffer(data[begin:end], stored).reshape(entry["shape"])
        tensors[name] = bf16_values(array) if entry["dtype"] == "BF16" else array
    return tensors, metadata


def write(path, tensors, metadata=None):
    header, chunks, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {key: str(metadata[key]) for key in sorted(metadata)}
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, BF16):
            dtype, array = "BF16", bf16_bits(tensor.array)
        else:
            array = np.ascontiguousarray(tensor)
            dtype = TENSOR_TYPE[array.dtype.newbyteorder("<")]
        chunk = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(chunk)],
        }
        chunks.append(chunk)
        offset += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))
