"""Opening files, looking at tensors, and what closing does."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from gguf_bytes import F32, Q8_0, Draft, pair, tensor_info
from minfer.errors import GGUFError, ModelError, ModelNotFoundError, ParameterError, UnsupportedError
from minfer.gguf import GGUFValueType, TensorInfo, TypedValue, open_gguf
from minfer.quants.ggml_types import GGMLType

MATRIX = np.arange(12, dtype="<f4").reshape(3, 4)
BLOCKS = bytes(range(2 * 34))  # two rows of one Q8_0 block

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def two_tensors(tmp_path: Path) -> Path:
    draft = Draft(
        pairs=[pair("general.architecture", TypedValue(GGUFValueType.STRING, "toy"))],
        infos=[tensor_info("matrix", (4, 3)), tensor_info("blocks", (32, 2), Q8_0, 64)],
        data=MATRIX.tobytes().ljust(64, b"\0") + BLOCKS,
    )
    path = tmp_path / "toy.gguf"
    path.write_bytes(draft.encode())
    return path


def test_what_an_open_file_tells(two_tensors: Path) -> None:
    with open_gguf(str(two_tensors)) as file:
        assert (file.path, file.paths) == (two_tensors, (two_tensors,))
        assert (file.version, file.alignment) == (3, 32)
        assert file.n_bytes == two_tensors.stat().st_size
        assert dict(file.metadata) == {"general.architecture": "toy"}
        data_start = file.n_bytes - 64 - len(BLOCKS)
        assert list(file.tensors.values()) == [
            TensorInfo("matrix", GGMLType.F32, (3, 4), data_start, 48, 0),
            TensorInfo("blocks", GGMLType.Q8_0, (2, 32), data_start + 64, 68, 0),
        ]
        assert file.tensors["blocks"].n_values == 64


def test_tensors_are_read_only_views_of_one_mapping(two_tensors: Path) -> None:
    with open_gguf(two_tensors) as file:
        packed = file.tensor_data("blocks")
        assert (packed.dtype, packed.shape) == (np.uint8, (2, 34))
        assert packed.tobytes() == BLOCKS
        matrix = file.tensor("matrix")
        assert (matrix.dtype, matrix.shape) == (np.float32, (3, 4))
        assert np.array_equal(matrix, MATRIX)
        assert np.shares_memory(matrix, file.tensor_data("matrix"))
        for view in (packed, matrix):
            with pytest.raises(ValueError, match="read-only"):
                view[0, 0] = 1


def test_a_packed_tensor_has_no_typed_view(two_tensors: Path) -> None:
    with open_gguf(two_tensors) as file, pytest.raises(UnsupportedError, match="'blocks', of type Q8_0"):
        file.tensor("blocks")


@pytest.mark.parametrize(
    ("ggml_type", "dtype"),
    [
        (GGMLType.F16, np.float16),
        (GGMLType.F32, np.float32),
        (GGMLType.F64, np.float64),
        (GGMLType.I8, np.int8),
        (GGMLType.I16, np.int16),
        (GGMLType.I32, np.int32),
        (GGMLType.I64, np.int64),
    ],
)
def test_plain_types(tmp_path: Path, ggml_type: GGMLType, dtype: type[np.generic]) -> None:
    values = np.array([[[1, -2], [3, -4]]], dtype)
    path = tmp_path / "plain.gguf"
    path.write_bytes(Draft(infos=[tensor_info("t", (2, 2, 1), ggml_type)], data=values.tobytes()).encode())
    with open_gguf(path) as file:
        met = file.tensor("t")
    assert (met.dtype, met.shape) == (values.dtype, (1, 2, 2))
    assert np.array_equal(met, values)


def test_a_missing_tensor_is_named_with_its_neighbours(two_tensors: Path) -> None:
    with open_gguf(two_tensors) as file:
        for look in (file.tensor_data, file.tensor, file.release, file.tensor_info):
            with pytest.raises(ModelError, match=r"no tensor 'matrxi' among its 2; did you mean 'matrix'\?"):
                look("matrxi")


def test_tensors_in_any_order_with_gaps(tmp_path: Path) -> None:
    infos = [tensor_info("second", (2,), F32, 64), tensor_info("first", (1,), F32, 0)]
    data = struct.pack("<f", 1).ljust(64, b"\xee") + struct.pack("<2f", 2, 3)
    path = tmp_path / "gaps.gguf"
    path.write_bytes(Draft(infos=infos, data=data).encode())
    with open_gguf(path) as file:
        assert list(file.tensors) == ["second", "first"]
        assert file.tensor("first").tolist() == [1]
        assert file.tensor("second").tolist() == [2, 3]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_from_the_metadata(tmp_path: Path, alignment: int) -> None:
    draft = Draft(
        pairs=[pair("general.alignment", TypedValue(GGUFValueType.UINT32, alignment))],
        infos=[tensor_info("a", (1,)), tensor_info("b", (1,), F32, alignment)],
        data=struct.pack("<f", 1).ljust(alignment, b"\0") + struct.pack("<f", 2),
        alignment=alignment,
    )
    path = tmp_path / "aligned.gguf"
    path.write_bytes(draft.encode())
    with open_gguf(path) as file:
        assert file.alignment == alignment
        assert file.tensors["a"].offset % alignment == 0
        assert (file.tensor("a").item(), file.tensor("b").item()) == (1, 2)


def test_version_2_and_a_file_without_tensors_or_padding(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    path.write_bytes(Draft(version=2, pairs=[pair("k", TypedValue(GGUFValueType.UINT8, 7))]).header())
    with open_gguf(path) as file:
        assert file.version == 2
        assert dict(file.metadata) == {"k": 7}
        assert not file.tensors


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (0, "GGUF version 0 of"),
        (1, r"GGUF version 1 of .*supported: GGUF version 2 \(little-endian\).*Convert the model anew"),
        (4, "GGUF version 4 of"),
        (0x0300_0000, r"a big-endian GGUF file \(version 3\)"),
        (0x0200_0000, r"a big-endian GGUF file \(version 2\)"),
        (0xFFFF_FFFF, "GGUF version 4294967295 of"),
    ],
)
def test_other_versions_are_refused_by_name(tmp_path: Path, version: int, message: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(Draft(version=version).encode())
    with pytest.raises(UnsupportedError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"PK\x03\x04....", "a zip archive or a PyTorch checkpoint"),
        (b"tjgg\x03\0\0\0", "GGJT file from before GGUF"),
        (b"Once upon a time there was a text file", "starts with b'Once upon a time'$"),
        (b"GGU", "starts with b'GGU'$"),
    ],
)
def test_what_is_no_gguf_file_is_told_apart(tmp_path: Path, start: bytes, hint: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(start)
    with pytest.raises(GGUFError, match="not a GGUF file: starts with ") as caught:
        open_gguf(path)
    assert caught.match(hint)
    assert (caught.value.field, caught.value.offset, caught.value.path) == ("magic", 0, str(path))


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(GGUFError, match="the file is empty"):
        open_gguf(path)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="No such file"):
        open_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelNotFoundError, match="a directory"):
        open_gguf(tmp_path)
    with pytest.raises(ModelNotFoundError, match="null byte"):
        open_gguf("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(ModelNotFoundError, match="not a regular file"):
        open_gguf(path)


def test_views_outlive_the_file_and_nothing_new_comes_from_it(two_tensors: Path) -> None:
    with open_gguf(two_tensors) as file:
        packed = file.tensor_data("blocks")
        metadata = file.metadata
    file.close()
    assert packed.tobytes() == BLOCKS
    assert metadata["general.architecture"] == "toy"
    assert list(file.tensors) == ["matrix", "blocks"]
    for look in (file.tensor_data, file.tensor, file.release):
        with pytest.raises(ParameterError, match="is closed"):
            look("matrix")
    with pytest.raises(ParameterError, match="is closed"):
        _ = file.metadata


@on_linux
def test_the_mapping_goes_with_the_last_view(two_tensors: Path) -> None:
    def is_mapped() -> bool:
        return str(two_tensors) in Path("/proc/self/maps").read_text()

    with open_gguf(two_tensors) as file:
        packed = file.tensor_data("blocks")
        assert is_mapped()
    assert is_mapped()
    del packed
    assert not is_mapped()


@on_linux
def test_release_gives_a_tensors_pages_back(tmp_path: Path) -> None:
    n_values = 2**18
    values = np.arange(2 * n_values, dtype="<f4")
    infos = [tensor_info("kept", (n_values,)), tensor_info("released", (n_values,), F32, 4 * n_values)]
    path = tmp_path / "large.gguf"
    path.write_bytes(Draft(infos=infos, data=values.tobytes()).encode())

    def resident_kib() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
        return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))

    with open_gguf(path) as file:
        kept, released = file.tensor("kept"), file.tensor("released")
        assert kept.sum() < released.sum()
        assert resident_kib() >= 2048
        file.release("released")
        assert resident_kib() <= 1024 + 16
        assert np.array_equal(kept, values[:n_values])
        assert np.array_equal(released, values[n_values:])
