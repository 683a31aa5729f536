"""Loads and stores: tails that touch nothing beyond, packed data, argument blocks, alignment, hints."""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from minfer.simd import (
    InterpretError,
    Kernel,
    KernelIR,
    Scalar,
    compile_to_assembly,
    f16,
    f32,
    f64,
    host_target,
    i8,
    i16,
    i32,
    i64,
    interpret,
    ptr,
    target_named,
    u8,
)
from simd_runs import DTYPES, Everywhere, random_bits

TAIL_TYPES = (i8, i16, f16, i32, f32, i64, f64)
LANES = 16


def tail(of: Scalar) -> KernelIR:
    k = Kernel(f"tail_{of}", x=ptr(of), y=ptr(of), n=i64)
    x, y, n = k.args
    here = k.first_lanes(n, LANES)
    k.store(y, k.load(x, LANES, mask=here), mask=here)
    return k.finish()


def packed() -> KernelIR:
    """A row of 3-byte records (u8, i16), whose i16 lie anywhere."""
    k = Kernel("packed", records=ptr(u8), out=ptr(i32), n=i64)
    records, out, n = k.args
    with k.loop(0, n) as i:
        record = records + i * 3
        value = k.load((record + 1).cast(i16), align=1)
        k.store(out + i, k.load(record).to(i32) + value.to(i32))
    return k.finish()


def pointer_moves() -> KernelIR:
    k = Kernel("pointer_moves", x=ptr(i32), out=ptr(i32), i=i64)
    x, out, i = k.args
    addresses = (
        x,
        x + 1,
        x + i,
        x + i + 1,
        (x + i).offset_bytes(4),
        x.cast(u8).offset_bytes(i * 8).cast(i32),
        x + 4 + -2,
    )
    for index, address in enumerate(addresses):
        k.store(out + index, k.load(address))
    return k.finish()


def argument_block() -> KernelIR:
    """The block holds: input, output, count, factor."""
    k = Kernel("argument_block", block=ptr(ptr(f32)))
    (block,) = k.args
    x, y = k.load(block), k.load(block + 1)
    n = k.load((block + 2).cast(i64))
    factor = k.load((block + 3).cast(f32))
    with k.loop(0, n) as i:
        k.store(y + i, k.load(x + i) * factor)
    k.store(block + 1, x)
    return k.finish()


def hints() -> KernelIR:
    k = Kernel("hints", x=ptr(f32), y=ptr(f32))
    x, y = k.args
    k.prefetch(x + 2**40)
    k.prefetch(y, locality=0, for_write=True)
    k.store(y, k.load(x, 16, align=64, non_temporal=True), align=64, non_temporal=True)
    return k.finish()


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    return Everywhere([*(tail(of) for of in TAIL_TYPES), packed(), pointer_moves(), hints()])


@pytest.mark.parametrize("of", TAIL_TYPES, ids=str)
@pytest.mark.parametrize("n", [-5, 0, 1, 3, 8, 15, 16, 100])
def test_tails_touch_only_their_lanes(everywhere: Everywhere, of: Scalar, n: int) -> None:
    x = random_bits(np.random.default_rng(1), of, LANES)
    y = random_bits(np.random.default_rng(2), of, LANES)
    _, out = everywhere.run(f"tail_{of}", lambda: [x, y.copy(), n])
    n_valid = min(max(n, 0), LANES)
    expected = np.concatenate([x[:n_valid], y[n_valid:]])
    assert out.tobytes() == expected.tobytes()


def test_masks_with_holes() -> None:
    k = Kernel("holes", x=ptr(f32), y=ptr(f32), z=ptr(f32))
    x, y, z = k.args
    mask = k.load(x, 8) > 0
    k.store(y, k.load(x, 8, mask=mask))
    k.store(z, k.load(x, 8), mask=mask)
    signs = np.array([-1, 2, 3, -4, -5, 6, -7, -8], np.float32)
    _, y_out, z_out = Everywhere([k.finish()]).run(
        "holes", lambda: [signs, np.full(8, 9, np.float32), np.full(8, 9, np.float32)]
    )
    assert y_out.tolist() == [0, 2, 3, 0, 0, 6, 0, 0]
    assert z_out.tolist() == [9, 2, 3, 9, 9, 6, 9, 9]


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="protecting pages is different on this system")
@pytest.mark.parametrize("of", [i8, f32], ids=str)
def test_tails_at_the_end_of_a_page_do_not_fault(everywhere: Everywhere, of: Scalar) -> None:
    """The page after the data can't be accessed: one byte too many would kill the process."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    try:
        n_valid = 5
        end = base + page - n_valid * of.n_bytes
        x = random_bits(np.random.default_rng(3), of, LANES)
        ctypes.memmove(end, x.ctypes.data, n_valid * of.n_bytes)
        for module in everywhere.modules.values():
            y = np.zeros(LANES, DTYPES[of.name])
            module[f"tail_{of}"](end, y, n_valid)
            assert y[:n_valid].tobytes() == x[:n_valid].tobytes()
            module[f"tail_{of}"](y, end, n_valid)
    finally:
        assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 3) == 0


def test_packed_records_lie_anywhere(everywhere: Everywhere) -> None:
    records = np.zeros(5, np.dtype([("a", np.uint8), ("b", np.int16)]))
    records["a"], records["b"] = [0, 1, 200, 255, 7], [1, -1, 32767, -32768, 300]
    _, out = everywhere.run("packed", lambda: [records.view(np.uint8), np.zeros(5, np.int32), 5])
    assert (out == records["a"].astype(np.int32) + records["b"]).all()


def test_pointers_move_by_elements_or_bytes(everywhere: Everywhere) -> None:
    x = np.arange(100, 110, dtype=np.int32)
    _, out = everywhere.run("pointer_moves", lambda: [x, np.zeros(7, np.int32), 3])
    assert out.tolist() == [100, 101, 103, 104, 104, 106, 102]


def test_hints_change_nothing(everywhere: Everywhere) -> None:
    def aligned(start: float) -> np.ndarray:
        room = np.zeros(32, np.float32)
        skip = (-room.ctypes.data % 64) // 4
        room[skip : skip + 16] = np.arange(start, start + 16)
        return room[skip : skip + 16]

    _, out = everywhere.run("hints", lambda: [aligned(1), aligned(50)])
    assert out.tolist() == list(range(1, 17))


def block_of(x: np.ndarray, y: np.ndarray, n: int, factor: float) -> np.ndarray:
    block = np.array([x.ctypes.data, y.ctypes.data, n, 0], np.uint64)
    block[3:].view(np.float32)[0] = factor
    return block


def test_argument_blocks_hold_pointers() -> None:
    everywhere = Everywhere([argument_block()])
    x = np.arange(6, dtype=np.float32)
    for module in everywhere.modules.values():
        y = np.zeros(6, np.float32)
        block = block_of(x, y, 6, 2.5)
        module["argument_block"](block)
        assert (y == 2.5 * x).all()
        assert block[1] == x.ctypes.data
    y = np.zeros(6, np.float32)
    block = block_of(x, y, 6, 2.5)
    interpret(argument_block(), block, buffers=[x, y])
    assert (y == 2.5 * x).all()
    assert block[1] == x.ctypes.data


def test_the_interpreter_names_the_line_of_an_access_out_of_bounds() -> None:
    x, y = np.zeros(16, np.float32), np.zeros(15, np.float32)
    with pytest.raises(InterpretError, match=r"0 to 64 are out of a buffer of 60 bytes") as caught:
        interpret(tail(f32), x, y, 16)
    assert caught.value.kernel == "tail_f32"
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    source = Path(__file__).read_text().splitlines()[caught.value.location.line - 1]
    assert source.strip() == "k.store(y, k.load(x, LANES, mask=here), mask=here)"


def test_the_interpreter_allows_what_a_mask_leaves_out() -> None:
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    interpret(tail(f32), x, y, 3)
    assert y.tolist() == [1, 1, 1]


def test_the_interpreter_refuses_addresses_before_a_buffer_and_of_no_buffer() -> None:
    x = np.zeros(8, np.int32)
    with pytest.raises(InterpretError, match="-4 to 0 are out of"):
        interpret(pointer_moves(), x[1:], np.zeros(7, np.int32), -1)
    with pytest.raises(InterpretError, match="no buffer lies at the address 0x10"):
        interpret(pointer_moves(), 16, np.zeros(7, np.int32), 0)


def test_the_interpreter_refuses_misaligned_accesses_and_read_only_buffers() -> None:
    raw = np.zeros(32, np.uint8)
    with pytest.raises(InterpretError, match="no multiple of 4"):
        interpret(pointer_moves(), raw[1:], np.zeros(7, np.int32), 0)
    fixed = np.zeros(16, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(InterpretError, match="read-only"):
        interpret(tail(f32), np.zeros(16, np.float32), fixed, 16)


def test_non_temporal_stores_bypass_the_cache() -> None:
    target = host_target()
    if not target.triple.startswith("x86_64"):
        pytest.skip("the instruction's name is x86's")
    assert re.search(r"movnt(ps|dq)\s+%", compile_to_assembly([hints()], target))
    assert "prefetch" in compile_to_assembly([hints()], target_named("portable"))
