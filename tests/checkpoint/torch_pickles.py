"""Files of torch.save and safetensors, built from their bytes; most of them are hostile."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

STOP = b"."
#: each name is pushed, and stays in the memo
ORDERED = b"ccollections\nOrderedDict\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)


def value(item: Any) -> bytes:
    """Return the operations that push a plain value."""
    return pickle.dumps(item, 2)[2:-1]


def tupled(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def storage(key: str = "0", elements: int = 4, kind: str = "FloatStorage", view: bytes = b"") -> bytes:
    return tupled(value("storage"), b"ctorch\n" + kind.encode() + b"\n", value(key), value("cpu"), value(elements), view) + b"Q"


def tensor(size: Any = (4,), stride: Any = (1,), offset: Any = 0, grad: Any = False, at: bytes | None = None) -> bytes:
    """Return the operations that push a tensor of the storage that `at` pushes."""
    hooks = ORDERED + b")R"
    return REBUILD + tupled(at or storage(), value(offset), value(size), value(stride), value(grad), hooks) + b"R"


def archive(body: bytes, records: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of a pickle with these operations, and of storages by key."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + body + STOP)
        for key, content in ({"0": bytes(16)} if records is None else records).items():
            file.writestr(f"archive/data/{key}", content)
    return out.getvalue()


def old(body: bytes, keys: Any = ("0",), sizes: tuple[int, ...] = (4,), content: bytes = bytes(16)) -> bytes:
    """Return a file of the older format."""
    parts = b"".join(struct.pack("<q", size) + content for size in sizes)
    return MAGIC + b"\x80\x02" + body + STOP + pickle.dumps(list(keys) if isinstance(keys, tuple) else keys, 2) + parts


def call(module: str, name: str, *arguments: Any) -> bytes:
    return f"c{module}\n{name}\n".encode() + tupled(*map(value, arguments)) + b"R"


def shared(levels: int) -> bytes:
    """Return the operations that push a tuple of two equal tuples, `levels` deep."""
    return value(1) + b"".join(b"q\x00h\x00\x86" for _ in range(levels))


def directory(count: int, size: int, at: int) -> bytes:
    """Return an archive whose directory claims to have these sizes."""
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, at)
    return b"PK\x03\x04" + bytes(60) + end64 + struct.pack("<4sIQI", b"PK\x06\x07", 0, 64, 1) + struct.pack("<4s4H2IH", b"PK\x05\x06", *[0] * 7)


def overlapping() -> bytes:
    """Return an archive whose records are all the same bytes."""
    content = bytearray(archive(value(1), {f"{i:03}": bytes(1000) for i in range(100)}))
    offsets, at = [], 0
    while (at := content.find(b"PK\x01\x02", at)) >= 0:
        offsets.append(at)
        at += 4
    first = content[offsets[1] + 42 : offsets[1] + 46]
    for offset in offsets[1:]:
        content[offset + 42 : offset + 46] = first
        struct.pack_into("<II", content, offset + 20, 50_000, 50_000)
    return bytes(content)


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        file.addfile(tarfile.TarInfo("storages"))
    return out.getvalue()


def safetensors(header: Any, content: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


#: limit of operations while the files are loaded, and a larger number
OPERATIONS, MANY = "512K", 600_000
#: hostile operations by description, and text of the error
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a call of os.system": (lambda: archive(call("posix", "system", "touch /tmp/hacked")), "posix.system"),
    "a call of eval by names on the stack": (
        lambda: archive(value("builtins") + value("eval") + b"\x93" + tupled(value("1")) + b"R"),
        "builtins.eval",
    ),
    "an attribute of an admitted module": (lambda: archive(call("torch._utils", "os.system", "ls")), "torch._utils.os.system"),
    "a module of a user": (lambda: archive(call("__main__", "Net")), "save state_dict()"),
    "a module of a user in the older format": (lambda: old(call("__main__", "Net")), "__main__.Net"),
    "a namespace": (lambda: archive(call("argparse", "Namespace")), "argparse.Namespace"),
    "an object by INST": (lambda: archive(b"(iposix\nsystem\n"), "unknown operation 0x69"),
    "an object by OBJ": (lambda: archive(b"(" + ORDERED + b"o"), "unknown operation"),
    "an object by NEWOBJ": (lambda: archive(ORDERED + b")\x81"), "unknown operation"),
    "a call of a number": (lambda: archive(value(1) + b")R"), "not a function"),
    "attributes of a list": (lambda: archive(b"]}" + value("append") + b"Nsb"), "attributes"),
    "attributes of an OrderedDict": (lambda: archive(ORDERED + b")R}" + value("items") + b"Nsb"), "attributes"),
    "a pickle of protocol 0": (lambda: archive(pickle.dumps([1, "a"], 0)[:-1]), "unknown operation"),
    "lists nested 100,000 deep": (lambda: archive(b"]" * 100_000 + b"a" * 99_999), "nested more than 100 deep"),
    "tuples nested 100,000 deep": (lambda: archive(b")" + b"\x85" * 100_000), "nested more than 100 deep"),
    "dicts nested 100,000 deep": (lambda: archive(b"}" + b"q\x00}Kxh\x00s" * 50_000), "nested more than 100 deep"),
    "a list in itself": (lambda: archive(b"]q\x00h\x00a"), "contains itself"),
    "a dict in its own tuple": (lambda: archive(b"}q\x00Kxh\x00\x85s"), "contains itself"),
    "a walk of 2**60 items": (lambda: archive(shared(60)), "shared items"),
    "a key with 2**60 parts": (lambda: archive(b"}" + shared(60) + b"Ns"), "parts"),
    "a class as value": (lambda: archive(ORDERED), "a class"),
    "a storage as value": (lambda: archive(storage()), "a storage"),
    "a list as key": (lambda: archive(b"}]Ns"), "a key is a list"),
    "keys with equal hashes": (lambda: archive(b"}(" + b"".join(value(i * (2**61 - 1)) + b"N" for i in range(1, 99)) + b"u"), "a key is a int"),
    "20,000 tuples as keys": (lambda: archive(b"}(" + b"K\x00\x85N" * 20_000 + b"u"), "keys are tuples"),
    "600,000 numbers": (lambda: archive(b"](" + b"N" * MANY + b"e"), "more than the limit of 524,288"),
    "a list of 10,000 items copied 10,000 times": (
        lambda: archive(b"](" + b"N" * 10_000 + b"eq\x00" + b"c__builtin__\nset\nh\x00\x85R" * 10_000),
        "more than the limit of 524,288",
    ),
    "a text of a megabyte encoded 10,000 times": (
        lambda: archive(value("x" * 2**20) + b"q\x01" + (b"c_codecs\nencode\nh\x01" + value("latin1") + b"\x86R") * 10_000),
        "more than the limit of 524,288",
    ),
    "an integer of 2**31 bytes": (lambda: archive(b"\x8b\xff\xff\xff\x7f"), "an integer has 2147483647 bytes"),
    "a text of 2**60 bytes": (lambda: archive(b"\x8d" + struct.pack("<Q", 2**60)), "bytes are expected"),
    "bytes of 2**32 bytes": (lambda: archive(b"B\xff\xff\xff\xff"), "bytes are expected"),
    "a text that is not UTF-8": (lambda: archive(b"X\x01\x00\x00\x00\xff"), "utf-8"),
    "a name without an end": (lambda: archive(b"c" + b"a" * 5000), "damaged"),
    "an entry of the memo that is missing": (lambda: archive(b"h\x07"), "damaged"),
    "more values are removed than pushed": (lambda: archive(b"RRR"), "damaged"),
    "no mark": (lambda: archive(b"t"), "damaged"),
    "no value": (lambda: archive(b""), "damaged"),
    "an offset beyond the storage": (lambda: archive(tensor((2,), (1,), 3)), "exceeds its storage of 4 elements"),
    "a negative offset": (lambda: archive(tensor(offset=-1)), "-1"),
    "sizes beyond the storage": (lambda: archive(tensor((5,), (1,))), "exceeds its storage"),
    "strides beyond the storage": (lambda: archive(tensor((2, 2), (3, 1))), "exceeds its storage"),
    "negative strides": (lambda: archive(tensor((4,), (-1,), 3)), "-1"),
    "strides of 2**62": (lambda: archive(tensor((4,), (2**62,))), "exceeds its storage"),
    "more sizes than strides": (lambda: archive(tensor((2, 2), (1,))), "2 sizes and 1 strides"),
    "100 sizes": (lambda: archive(tensor((1,) * 100, (1,) * 100)), "at most 64 sizes"),
    "a size that is a list": (lambda: archive(tensor([4], [1])), "tuple"),
    "a size that is a number": (lambda: archive(tensor((4.0,), (1,))), "not an integer"),
    "no elements, but sizes of 2**62": (lambda: archive(tensor((0, 2**62, 2**62), (1, 1, 1))), "exceeds its storage"),
    "a broadcast tensor of 4 TB": (lambda: archive(tensor((2**40,), (0,))), "JOBFLOW_MAX_UNPACKED"),
    "a gradient of integers": (lambda: archive(tensor(grad=True, at=storage(kind="IntStorage"))), "requires a gradient"),
    "a tensor of a list": (lambda: archive(tensor(at=b"]")), "unknown form"),
    "a storage of 2**60 elements": (lambda: archive(tensor(at=storage(elements=2**60))), "the file has 16"),
    "a storage of negative size": (lambda: archive(tensor(at=storage(elements=-4))), "-4"),
    "a storage that is missing": (lambda: archive(tensor(at=storage("1"))), "damaged"),
    "a storage of two types": (lambda: archive(b"](" + tensor() + tensor(at=storage(kind="IntStorage")) + b"e"), "two sizes or element types"),
    "a storage of an unknown form": (lambda: archive(value("storage") + b"Q"), "damaged"),
    "complex numbers": (lambda: archive(tensor(at=storage(kind="ComplexFloatStorage"))), "complex64"),
    "a compressed bomb": (lambda: archive(value(1), {"0": bytes(10_000_000)}, zipfile.ZIP_DEFLATED), "compressed"),
    "records that overlap": (overlapping, "overlap"),
    "a directory of 2**63 records": (lambda: directory(2**63, 2**63, 0), "damaged"),
    "a directory beyond the file": (lambda: directory(1, 2**40, 10), "damaged"),
    "an archive of another program": (lambda: archive(value(1)).replace(b"data.pkl", b"data.txt"), "without data.pkl"),
    "half an archive": (lambda: archive(tensor())[:200], "damaged"),
    "only the mark of an archive": (lambda: b"PK\x03\x04", "damaged"),
    "an older file with another size": (lambda: old(tensor(), sizes=(5,)), "another size"),
    "an older file that ends early": (lambda: old(tensor(at=storage(elements=2**40), size=(2**40,)), sizes=(2**40,)), "bytes are expected"),
    "an older file with a storage twice": (lambda: old(tensor(), ("0", "0"), (4, 4)), "list of storages"),
    "an older file with a list in the list of storages": (lambda: old(tensor(), [[]]), "list of storages"),
    "an older file without its storages": (lambda: old(tensor(), (), ()), "list of storages"),
    "views of storages": (lambda: old(tensor(at=storage(view=value(("0", 0, 2))))), "newer release"),
    "any pickle": (lambda: pickle.dumps({"a": 1}), "not a file of torch.save"),
    "a pickle of os.system": (lambda: b"\x80\x02" + call("posix", "system", "ls") + STOP, "posix.system"),
    "a tar archive": (tar, "tar archive"),
    "a text": (lambda: b"hello", "not a file of torch.save"),
    "nothing": (lambda: b"", "not a file of torch.save"),
}
#: the same for files whose name ends with .safetensors
HOSTILE_SAFETENSORS: dict[str, tuple[Callable[[], bytes], str]] = {
    "tensors beyond the file": (lambda: safetensors({"w": entry("F32", [10**12, 10**9], 0, 4 * 10**21)}), "damaged"),
    "a header nested 100,000 deep": (lambda: safetensors(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested"),
    "a header of 2**62 bytes": (lambda: struct.pack("<Q", 2**62) + b"{}", "header"),
    "tensors that overlap": (lambda: safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)), "damaged"),
    "a gap": (lambda: safetensors({"a": entry("U8", [4], 4, 8)}, bytes(8)), "damaged"),
    "elements of an unknown type": (lambda: safetensors({"a": entry("F4", [4], 0, 4)}, bytes(4)), "unknown element type"),
    "elements of a type that jobflow lacks": (lambda: safetensors({"a": entry("U16", [2], 0, 4)}, bytes(4)), "uint16"),
    "a negative size": (lambda: safetensors({"a": entry("U8", [-4], 0, 4)}, bytes(4)), "damaged"),
    "a header of six million lists": (lambda: safetensors(b'{"w":[' + b"[]," * 6_000_000 + b"[]]}"), "JOBFLOW_MAX_HEADER_ITEMS"),
    "no header": (lambda: b"abc", "damaged"),
}
