"""Writes the golden files beside it. Needs numpy 2.4, safetensors 0.8, ml_dtypes 0.6, tensorboard 2.21.

    python generate.py

The tests read these files, and also compare what the C++ writers make with them byte for byte.
"""
import gzip
import pathlib
import struct

import ml_dtypes  # registers the 8-bit and bfloat16 types with numpy
import numpy as np
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import save_file
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

HERE = pathlib.Path(__file__).parent

# --- safetensors -------------------------------------------------------------------------------------------------

# Each tensor has shape (2,) and the bytes 0, 1, 2, ... ; bool holds 0, 1.
DTYPES = ("bool uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz int16 uint16 "
          "float16 bfloat16 int32 uint32 float32 complex64 float64 int64 uint64").split()
SIZES = dict(zip(DTYPES, [1] * 8 + [2] * 4 + [4] * 3 + [8] * 4))


def every_dtype():
    specs, alive = {}, []
    for dtype in DTYPES:
        data = np.arange(2 * SIZES[dtype], dtype=np.uint8)
        alive.append(data)
        specs[dtype] = TensorSpec(dtype=dtype, shape=[2], data_ptr=data.ctypes.data, data_len=data.nbytes)
    serialize_file(specs, HERE / "every_dtype.safetensors")


def safetensors():
    every_dtype()
    save_file({"w": np.array([[1, 2], [3, 4]], np.float32)}, HERE / "one.safetensors")
    save_file(
        {
            "scalar": np.array(0.5, np.float32),
            "empty": np.zeros((0, 3), np.float32),
            "half": np.array([1.0, -2.0], np.float16),
            "brain": np.array([1.5, 2.5], ml_dtypes.bfloat16),
            "mask": np.array([True, False, True]),
            "layer.10.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "layer.2.weight": np.arange(3, dtype=np.int64),
            'odd "name"\\ \x01\n\x7f/é': np.array([7], np.int64),
        },
        HERE / "shapes.safetensors",
        metadata={"format": "pt"},
    )
    save_file({}, HERE / "metadata_only.safetensors", metadata={"epoch": "3"})


# --- npy ---------------------------------------------------------------------------------------------------------


def npy(name, array, version=None):
    with open(HERE / name, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def npys():
    matrix = np.array([[1, 2, 3], [4, 5, 6]], "<i2")
    npy("c_order.npy", matrix)
    npy("fortran_order.npy", np.asfortranarray(matrix))
    npy("big_endian.npy", np.array([1, 2], ">f4"))
    npy("version_2.npy", matrix, (2, 0))
    npy("version_3.npy", matrix, (3, 0))
    npy("scalar.npy", np.array(2.5))
    npy("empty.npy", np.zeros((0, 3), "<f4"))
    npy("complex.npy", np.array([1 + 2j], np.complex128))
    npy("half.npy", np.array([1.5], np.float16))
    npy("bool.npy", np.array([True, False]))


# --- IDX, by the format's own page --------------------------------------------------------------------------------


def idx(code, array):
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def idxs():
    bytes_ = idx(0x08, np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    (HERE / "u8.idx").write_bytes(bytes_)
    floats = idx(0x0D, np.array([[1.0, -2.5], [0.0, 3e30]], np.float32))
    (HERE / "f32.idx").write_bytes(floats)
    # Names say nothing about compression; the second file is two compressed files joined, as gzip allows.
    (HERE / "u8_packed.idx").write_bytes(gzip.compress(bytes_, mtime=0))
    (HERE / "f32_packed.idx").write_bytes(gzip.compress(floats[:10], mtime=0) + gzip.compress(floats[10:], mtime=0))
    # 16 MiB of zeros in 16 kB, under a header that promises ten bytes; and a header that promises 4 GB in 40 bytes.
    head = bytes([0, 0, 0x08, 1])
    (HERE / "bomb.idx").write_bytes(gzip.compress(head + struct.pack(">I", 10) + bytes(1 << 24), mtime=0))
    (HERE / "boast.idx").write_bytes(gzip.compress(head + struct.pack(">I", 0xFFFFFFFF) + b"abc", mtime=0))


# --- TensorBoard events -------------------------------------------------------------------------------------------


def events():
    def scalar(tag, value):
        return Summary(value=[Summary.Value(tag=tag, simple_value=value)])

    with open(HERE / "events.tfevents", "wb") as file:
        writer = RecordWriter(file)
        for event in [
            Event(wall_time=1.5, file_version="brain.Event:2"),
            Event(wall_time=1.75, step=0, summary=scalar("loss", 0.25)),
            Event(wall_time=2.0, step=300, summary=scalar("loss", 0.0)),
            Event(wall_time=2.5, step=1 << 40, summary=scalar("lr/gruppe \u00e9", float("nan"))),
            Event(wall_time=3.0, step=-1, summary=scalar("x" * 200, float("-inf"))),
            Event(wall_time=3.5, step=4, summary=text_pb("config", "| a | b |\n")),
            Event(wall_time=4.0, step=5, summary=text_pb("config", "")),
        ]:
            writer.write(event.SerializeToString(deterministic=True))


if __name__ == "__main__":
    safetensors()
    npys()
    idxs()
    events()
