"""One file, and the files of a split model: `PREFIX-00001-of-00003.gguf` and so on, each a GGUF file of its own.

Every part says in its metadata which it is (`split.no`, from 0), how many there are (`split.count`) and how many
tensors they hold together (`split.tensors.count`). The first part has the model's metadata. A `split.count` of 0 or 1
is what a model has that was put together again.

Source: the GGUF specification, and the conventions of `gguf-split`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from minfer.errors import GGUFError, ModelNotFoundError, UnsupportedError
from minfer.gguf.arrays import read_scalar
from minfer.gguf.mapping import MappedFile, map_file
from minfer.gguf.metadata import MIN_PAIR_BYTES, Entry, read_entries
from minfer.gguf.scan import Cursor, shown
from minfer.gguf.tensors import MIN_TENSOR_INFO_BYTES, TensorInfo, read_tensors
from minfer.gguf.values import ValueKind, kind_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8

ALIGNMENT_KEY = "general.alignment"
SPLIT_NO_KEY = "split.no"
SPLIT_COUNT_KEY = "split.count"
SPLIT_TENSORS_KEY = "split.tensors.count"

_PART_NAME = re.compile(r"(?P<prefix>.+)-\d{5}-of-\d{5}\.gguf", re.DOTALL)
_MAX_PARTS = 99_999  # what five digits can say

# What people take for a GGUF file, by its first bytes.
_LOOKALIKES = {
    b"version https://git-lfs": "a Git LFS pointer; fetch the file it stands for",
    b"<": "a web page, so probably a failed download",
    b"PK\x03\x04": "a zip archive or a PyTorch checkpoint",
    b"lmgg": "a GGML file from before GGUF; convert the model anew",
    b"fmgg": "a GGMF file from before GGUF; convert the model anew",
    b"tjgg": "a GGJT file from before GGUF; convert the model anew",
}
_N_SHOWN_BYTES = 16
_MAX_SHOWN_PATHS = 5


@dataclass(frozen=True)
class Split:
    """Which part of how many this is, and how many tensors all of them hold."""

    number: int
    n_parts: int
    n_tensors: int


@dataclass(frozen=True)
class Part:
    """One file, checked whole. `split` is None for a model in one file."""

    file: MappedFile
    version: int
    alignment: int
    entries: dict[str, Entry]
    split: Split | None
    tensors: list[TensorInfo]


def read_parts(path: Path) -> list[Part]:
    """Reads the file, and if it is one of several, the others, which lie beside it. In the order of their numbers.

    Raises:
        ModelNotFoundError: if a file is missing or can't be opened.
        GGUFError: if a file is not valid, or the parts contradict each other.
        UnsupportedError: for another version of the format, a big-endian file, or an unknown tensor type.
    """
    opened = _read_part(path)
    if opened.split is None:
        return [opened]
    paths = _part_paths(path, opened.split)
    parts = [opened if number == opened.split.number else _read_part(other) for number, other in enumerate(paths)]
    _check_parts(parts, opened.split)
    return parts


def merge_entries(parts: list[Part]) -> dict[str, Entry]:
    """The metadata of all parts: a key that occurs in several must have the same value, unless it is about the part."""
    own_keys = {ALIGNMENT_KEY, SPLIT_NO_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY}
    merged = dict(parts[0].entries)
    for part in parts[1:]:
        for key, entry in part.entries.items():
            first = merged.setdefault(key, entry)
            same = (entry.value_type, entry.encoded()) == (first.value_type, first.encoded())
            if not same and key not in own_keys:
                message = f"the value differs from the one in {first.path}; are these parts of the same model?"
                raise GGUFError(message, field=f"metadata {shown(key)}", offset=entry.start, path=entry.path)
    return merged


def _read_part(path: Path) -> Part:
    file = map_file(path)
    cursor = Cursor(file.view, str(path))
    version = _read_version(cursor)
    counts_at = cursor.position
    n_tensors = cursor.count("tensors", MIN_TENSOR_INFO_BYTES, "tensor count")
    n_pairs = cursor.count("metadata pairs", MIN_PAIR_BYTES, "metadata count")
    entries = read_entries(cursor, n_pairs)
    if n_tensors * MIN_TENSOR_INFO_BYTES > cursor.n_remaining:
        message = f"{n_tensors} tensors, but only {cursor.n_remaining} bytes remain after the metadata"
        raise cursor.error(message, "tensor count", counts_at)
    alignment = _alignment(entries)
    split = _split(entries)
    tensors = read_tensors(cursor, n_tensors, alignment, split.number if split else 0)
    return Part(file, version, alignment, entries, split, tensors)


def _read_version(cursor: Cursor) -> int:
    start = bytes(cursor.data[:_N_SHOWN_BYTES])
    if not start.startswith(MAGIC):
        looks = next((what for prefix, what in _LOOKALIKES.items() if bytes(cursor.data[: len(prefix)]) == prefix), "")
        message = f"not a GGUF file: starts with {start!r}{f', as does {looks}' if looks else ''}"
        raise cursor.error(message, "magic", 0)
    cursor.skip(len(MAGIC), "magic")
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    supported = [f"GGUF version {known} (little-endian)" for known in VERSIONS]
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped <= max(VERSIONS):
        raise UnsupportedError(f"a big-endian GGUF file (version {swapped}), {cursor.path},", supported)
    hint = "Convert the model anew." if version == 1 else ""
    raise UnsupportedError(f"GGUF version {version} of {cursor.path}", supported, hint)


def _alignment(entries: dict[str, Entry]) -> int:
    entry = entries.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    alignment = _entry_int(ALIGNMENT_KEY, entry)
    if alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
        message = f"must be a power of two from {MIN_ALIGNMENT} on, not {alignment}"
        raise _entry_error(ALIGNMENT_KEY, entry, message)
    return alignment


def _split(entries: dict[str, Entry]) -> Split | None:
    if SPLIT_COUNT_KEY not in entries:
        return None
    n_parts = _entry_int(SPLIT_COUNT_KEY, entries[SPLIT_COUNT_KEY])
    if n_parts in (0, 1):
        return None
    if not 0 <= n_parts <= _MAX_PARTS:
        message = f"must be 0 to {_MAX_PARTS}, not {n_parts}"
        raise _entry_error(SPLIT_COUNT_KEY, entries[SPLIT_COUNT_KEY], message)
    for key in (SPLIT_NO_KEY, SPLIT_TENSORS_KEY):
        if key not in entries:
            message = f"there are {n_parts} parts, but the key {shown(key)} is missing"
            raise _entry_error(SPLIT_COUNT_KEY, entries[SPLIT_COUNT_KEY], message)
    number = _entry_int(SPLIT_NO_KEY, entries[SPLIT_NO_KEY])
    if not 0 <= number < n_parts:
        message = f"must be 0 to {n_parts - 1} with {n_parts} parts, not {number}"
        raise _entry_error(SPLIT_NO_KEY, entries[SPLIT_NO_KEY], message)
    return Split(number, n_parts, _entry_int(SPLIT_TENSORS_KEY, entries[SPLIT_TENSORS_KEY]))


def _entry_int(key: str, entry: Entry) -> int:
    if kind_of(entry.value_type) is not ValueKind.INT:
        raise _entry_error(key, entry, f"must be an integer, not {entry.value_type.name}")
    return int(read_scalar(Cursor(entry.data, entry.path, entry.start), entry.value_type, key))


def _entry_error(key: str, entry: Entry, message: str) -> GGUFError:
    return GGUFError(message, field=f"metadata {shown(key)}", offset=entry.start, path=entry.path)


def _part_paths(path: Path, split: Split) -> list[Path]:
    name = _PART_NAME.fullmatch(path.name)
    expected = f"-{split.number + 1:05}-of-{split.n_parts:05}.gguf"
    if name is None or not path.name.endswith(expected):
        message = f"this is part {split.number + 1} of {split.n_parts}, so its name must end in {expected!r}"
        raise GGUFError(message, field="file name", path=str(path))
    prefix, n_parts = name["prefix"], split.n_parts

    def all_paths() -> Iterator[Path]:
        return (path.with_name(f"{prefix}-{number + 1:05}-of-{n_parts:05}.gguf") for number in range(n_parts))

    # A few are enough to name, and `split.count` may claim more than anyone wants to look for.
    missing = list(islice((part for part in all_paths() if not part.exists()), _MAX_SHOWN_PATHS + 1))
    if missing:
        tried = [f"{part}: missing" for part in missing[:_MAX_SHOWN_PATHS]]
        more = ["and others"] if len(missing) > _MAX_SHOWN_PATHS else []
        hint = f"The model is split into {n_parts} files, which must lie in one directory."
        raise ModelNotFoundError(str(path), tried + more, hint)
    return list(all_paths())


def _check_parts(parts: list[Part], opened: Split) -> None:
    holders: dict[str, Part] = {}
    for number, part in enumerate(parts):
        path = str(part.file.path)
        expected = Split(number, opened.n_parts, opened.n_tensors)
        if part.split != expected:
            met = f"says {_describe(part.split)}" if part.split else "says that it is not split"
            raise GGUFError(f"expected {_describe(expected)}, but it {met}", field="split", path=path)
        for tensor in part.tensors:
            if tensor.name in holders:
                message = f"the name occurs in {holders[tensor.name].file.path} too"
                raise GGUFError(message, field=f"tensor {shown(tensor.name)}", path=path)
            holders[tensor.name] = part
    if len(holders) != opened.n_tensors:
        message = f"the {opened.n_parts} parts should hold {opened.n_tensors} tensors, but hold {len(holders)}"
        raise GGUFError(message, field=f"metadata {shown(SPLIT_TENSORS_KEY)}", path=str(parts[0].file.path))


def _describe(split: Split) -> str:
    return f"part {split.number + 1} of {split.n_parts} with {split.n_tensors} tensors in all"
