"""Models in several files: opened by any of them, and refused if they don't belong together."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_bytes import F32, Draft, pair, raw_pair, tensor_info
from minfer.errors import GGUFError, ModelNotFoundError
from minfer.gguf import GGUFValueType, TypedValue, open_gguf

T = GGUFValueType


def write_parts(directory: Path, **changed: dict[int, object]) -> list[Path]:
    """Three files, of two, one and one tensors. `changed` gives, by metadata key, the values of single parts."""
    names = [["a", "b"], ["c"], ["d"]]
    paths = []
    for number, tensors in enumerate(names):
        values = {"split_no": number, "split_count": 3, "split_tensors_count": 4}
        values |= {key: by_part[number] for key, by_part in changed.items() if number in by_part}
        pairs = [pair("general.name", TypedValue(T.STRING, values.get("general_name", "toy")))] if number != 1 else []
        keys = [key for key in ("split_no", "split_count", "split_tensors_count") if values[key] is not None]
        pairs += (pair(key.replace("_", "."), TypedValue(T.INT32, values[key])) for key in keys)
        tensors = values.get("tensors", tensors)
        infos = [tensor_info(name, (1,), F32, 32 * index) for index, name in enumerate(tensors)]
        data = b"".join(struct.pack("<f", ord(name)).ljust(32, b"\0") for name in tensors)
        path = directory / f"toy-{number + 1:05}-of-00003.gguf"
        path.write_bytes(Draft(pairs=pairs, infos=infos, data=data).encode())
        paths.append(path)
    return paths


def test_any_part_opens_all(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    for path in paths:
        with open_gguf(path) as file:
            assert file.path == path
            assert file.paths == tuple(paths)
            assert file.n_bytes == sum(part.stat().st_size for part in paths)
            assert {name: info.part for name, info in file.tensors.items()} == {"a": 0, "b": 0, "c": 1, "d": 2}
            assert [chr(int(file.tensor(name)[0])) for name in "abcd"] == ["a", "b", "c", "d"]
            assert file.metadata.get_int("split.no") == 0
            assert file.metadata.get_str("general.name") == "toy"
            file.release("d")
            assert file.tensor("d").item() == ord("d")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"00002-of-00003\.gguf: missing") as caught:
        open_gguf(paths[2])
    assert caught.value.tried == (f"{paths[1]}: missing",)
    assert "split into 3 files" in str(caught.value)


def test_of_many_missing_parts_a_few_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-60000.gguf"
    keys = {"split.no": 0, "split.count": 60_000, "split.tensors.count": 1}
    path.write_bytes(Draft(pairs=[pair(key, TypedValue(T.UINT16, value)) for key, value in keys.items()]).header())
    with pytest.raises(ModelNotFoundError, match=r"-00006-of-60000\.gguf: missing\n  - and others"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split_no": {1: 2}}, "expected part 2 of 3 with 4 tensors in all, but it says part 3 of 3"),
        ({"split_no": {1: None}}, r"there are 3 parts, but the key 'split\.no' is missing"),
        ({"split_tensors_count": {2: None}}, r"the key 'split\.tensors\.count' is missing"),
        ({"split_count": {1: 4}}, "expected part 2 of 3 .*, but it says part 2 of 4"),
        ({"split_count": {1: None}}, "expected part 2 of 3 .*, but it says that it is not split"),
        ({"split_count": {1: 1}}, "but it says that it is not split"),
        ({"split_count": {1: -3}}, "must be 0 to 99999, not -3"),
        ({"split_no": {1: 3}}, "must be 0 to 2 with 3 parts, not 3"),
        ({"split_no": {1: -1}}, "must be 0 to 2 with 3 parts, not -1"),
        ({"split_tensors_count": {1: 5}}, "part 2 of 3 with 4 tensors in all, but it says part 2 of 3 with 5"),
        ({"split_tensors_count": {0: 5, 1: 5, 2: 5}}, "the 3 parts should hold 5 tensors, but hold 4"),
        ({"tensors": {2: ["b"]}}, r"tensor 'b': the name occurs in .*00001-of-00003\.gguf too"),
        ({"general_name": {2: "other"}}, "'general.name' at byte .*parts of the same model"),
    ],
)
def test_parts_that_contradict_each_other(tmp_path: Path, changed: dict[str, dict[int, object]], message: str) -> None:
    paths = write_parts(tmp_path, **changed)
    with pytest.raises(GGUFError, match=message):
        open_gguf(paths[0])


def test_a_split_key_of_the_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-00002.gguf"
    path.write_bytes(Draft(pairs=[pair("split.count", TypedValue(T.STRING, "2"))]).header())
    with pytest.raises(GGUFError, match=r"'split\.count' at byte \d+: must be an integer, not STRING"):
        open_gguf(path)


@pytest.mark.parametrize("name", ["toy.gguf", "toy-00002-of-00003.gguf", "toy-00001-of-00004.gguf", "toy-1-of-3.gguf"])
def test_a_part_by_another_name_is_refused(tmp_path: Path, name: str) -> None:
    moved = write_parts(tmp_path)[0].rename(tmp_path / name)
    with pytest.raises(GGUFError, match=r"this is part 1 of 3, so its name must end in '-00001-of-00003\.gguf'"):
        open_gguf(moved)


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_model_is_one_file_whatever_its_name(tmp_path: Path, count: int) -> None:
    path = tmp_path / "merged.gguf"
    pairs = [pair("split.count", TypedValue(T.UINT16, count)), raw_pair("split.no", T.UINT16, b"\0\0")]
    path.write_bytes(Draft(pairs=pairs, infos=[tensor_info("a", (1,))], data=bytes(4)).encode())
    with open_gguf(path) as file:
        assert file.paths == (path,)


def test_each_part_has_its_own_alignment(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    keys = {"general.alignment": 8, "split.no": 2, "split.count": 3, "split.tensors.count": 4}
    draft = Draft(
        pairs=[pair(key, TypedValue(T.UINT32, value)) for key, value in keys.items()],
        infos=[tensor_info("d", (1,), F32, 8)],
        data=bytes(8) + struct.pack("<f", 9),
        alignment=8,
    )
    paths[2].write_bytes(draft.encode())
    with open_gguf(paths[0]) as file:
        assert file.alignment == 32
        assert file.tensor("d").item() == 9


def test_parts_written_by_the_gguf_package(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "toy", split_max_tensors=2)
    tensors = {f"t{index}": np.full((2, index + 1), index, np.float32) for index in range(5)}
    writer.add_block_count(7)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "model-00002-of-00003.gguf") as file:
        assert len(file.paths) == 3
        assert list(file.tensors) == list(tensors)
        assert file.metadata.get_int("toy.block_count") == 7
        for name, values in tensors.items():
            assert np.array_equal(file.tensor(name), values)
