"""Which target runs where, what it enables, and the instructions that must (and must not) be in the assembly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from minfer.errors import UnsupportedError
from minfer.simd import (
    Architecture,
    Kernel,
    KernelIR,
    Machine,
    Ordering,
    Target,
    compile_to_assembly,
    f16,
    f32,
    foreign_target,
    host_target,
    host_target_names,
    i8,
    i32,
    i64,
    lower_to_llvm,
    optimised_llvm,
    ptr,
    target_named,
    this_machine,
    u8,
    vec,
)
from minfer.simd import targets as targets_module
from minfer.simd.targets import InstructionSet

X86_NAMES = ("avx512", "avx512bw", "avxvnni", "avx2", "portable")
AVX2 = ("avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "popcnt", "sse2", "ssse3")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
HIGHER = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avxvnni", "amx-int8", "gfni")


def machine(*present: str, architecture: Architecture = Architecture.X86_64) -> Machine:
    features = dict.fromkeys((*AVX2, *HIGHER, "dotprod", "i8mm", "neon", "sve"), False)
    return Machine(
        architecture, f"{architecture.value}-unknown-linux-gnu", "some-cpu", features | dict.fromkeys(present, True)
    )


def enabled(target: Target) -> set[str]:
    return {flag[1:] for flag in target.features.split(",") if flag.startswith("+")}


def dot(u_max: int = 255, lanes: int = 16) -> KernelIR:
    k = Kernel("dot", acc=ptr(i32), u=ptr(u8), s=ptr(i8), n=i64)
    acc, u, s, n = k.args
    total = k.var(k.load(acc, lanes))
    with k.loop(0, n) as i:
        at = i * (4 * lanes)
        total.set(k.dot4(total.get(), k.load(u + at, 4 * lanes), k.load(s + at, 4 * lanes), u_max=u_max))
    k.store(acc, total.get())
    return k.finish()


def multiply_then_add() -> KernelIR:
    k = Kernel("multiply_then_add", x=ptr(f32), y=ptr(f32))
    x, y = k.args
    k.store(y, k.load(x, 16) * k.load(x + 16, 16) + k.load(x + 32, 16))
    return k.finish()


def a_bit_of_everything() -> KernelIR:
    k = Kernel("everything", x=ptr(f32), h=ptr(f16), b=ptr(u8), counter=ptr(i64), block=ptr(ptr(f32)), n=i64)
    x, h, b, counter, block, n = k.args
    total = k.var(k.const(vec(f32, 16), 0.0))
    with k.loop(0, n, 16) as i:
        here = k.first_lanes(n - i, 16)
        a = k.load(x + i, 16, mask=here)
        total.set(k.fma(a, k.floor(a), total.get()) + k.exp(a) / k.sqrt(k.abs(a)) + k.round_even(a))
        k.store(h + i, k.minimum(a, total.get()).to(f16), mask=here)
        q = k.load(b + i * 64, 64)
        codes = k.lookup16(range(16), q & 15).bitcast(vec(u8, 64))
        dots = k.dot4(a.round_to(i32), q >> 4, (q ^ codes).bitcast(vec(i8, 64)))
        k.store(b.cast(i8) + i, dots.saturate_to(i8), align=1)
        with k.while_(lambda: k.atomic_load(counter, Ordering.ACQUIRE) < i):
            k.pause()
        k.prefetch(x + i + 256)
    k.atomic_add(counter, 1)
    k.store(k.load(block), k.reduce_sum(total.get() + k.load(h, 16).to(f32)))
    return k.finish()


@pytest.mark.parametrize("name", host_target_names())
def test_a_target_enables_nothing_that_the_host_lacks(name: str) -> None:
    host = {feature for feature, present in this_machine().features.items() if present}
    assert host
    assert enabled(target_named(name)) <= host


def test_what_the_cpus_name_stands_for_but_the_host_hides_is_disabled_by_name() -> None:
    target = target_named("avx2", machine(*AVX2))
    disabled = {flag[1:] for flag in target.features.split(",") if flag.startswith("-")}
    assert set(HIGHER) <= disabled


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ((*AVX512, "avx512vnni", "avxvnni"), "avx512"),
        (AVX512, "avx512bw"),
        ((*AVX2, "avx512f"), "avx2"),
        ((*AVX2, "avxvnni"), "avxvnni"),
        (AVX2, "avx2"),
        (("sse2", "ssse3", "avx"), "portable"),
    ],
)
def test_the_host_gets_the_best_that_it_runs(present: tuple[str, ...], expected: str) -> None:
    target = host_target(machine(*present))
    assert target.name == expected
    assert enabled(target) <= set(present)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (("neon", "dotprod", "i8mm", "sve"), "neon_i8mm"),
        (("neon", "dotprod"), "neon"),
        (("neon",), "portable"),
    ],
)
def test_arm_hosts(present: tuple[str, ...], expected: str) -> None:
    target = host_target(machine(*present, architecture=Architecture.AARCH64))
    assert target.name == expected
    assert enabled(target) <= set(present) - {"sve"}


def test_forcing_a_lower_target_turns_the_higher_features_off() -> None:
    full = machine(*AVX512, "avx512vnni", "avxvnni", "amx-int8", "gfni")
    assert host_target_names(full) == X86_NAMES
    for name, absent in (("avx512bw", "avx512vnni"), ("avxvnni", "avx512f"), ("avx2", "avxvnni"), ("portable", "avx2")):
        target = target_named(name, full)
        assert absent not in enabled(target)
    assert not any(feature.startswith("avx512") for feature in enabled(target_named("avx2", full)))
    assert enabled(target_named("portable", full)) == {"sse2"}
    assert "amx-int8" not in enabled(target_named("avx512", full))


def test_a_target_that_the_host_lacks_is_refused_with_those_it_runs() -> None:
    with pytest.raises(UnsupportedError, match="target 'avx512' on this machine") as caught:
        target_named("avx512", machine(*AVX2))
    assert caught.value.supported == ("avx2", "portable")
    with pytest.raises(UnsupportedError, match="'sse9'"):
        target_named("sse9")
    with pytest.raises(UnsupportedError, match="'sse9'") as caught:
        foreign_target("sse9")
    assert caught.value.supported == (*X86_NAMES[:4], "neon_i8mm", "neon", "portable")


def test_other_architectures_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets_module.llvm, "host_triple", lambda: "riscv64-unknown-linux-gnu")
    with pytest.raises(UnsupportedError, match="CPU architecture 'riscv64'"):
        this_machine()


def pretend_arm(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """LLVM itself reports next to nothing about Arm CPUs."""
    monkeypatch.setattr(targets_module.llvm, "host_triple", lambda: "aarch64-unknown-some-system")
    monkeypatch.setattr(targets_module.llvm, "host_features", lambda: {"neon": True})
    monkeypatch.setattr(targets_module.platform, "system", lambda: system)


def test_apples_cpus_have_dot_products_though_macos_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_arm(monkeypatch, "Darwin")
    assert host_target().name == "neon"


@pytest.mark.parametrize(
    ("words", "expected", "features"),
    [
        ("fp asimd evtstrm aes atomics asimddp sve i8mm", "neon_i8mm", {"neon", "dotprod", "i8mm", "lse"}),
        ("fp asimd atomics asimddp", "neon", {"neon", "dotprod", "lse"}),
        ("fp asimd", "portable", {"neon"}),
    ],
)
def test_linux_tells_the_features_of_arm_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, expected: str, features: set[str]
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor\t: 0\nFeatures\t: {words}\nCPU part\t: 0xd0c\n")
    pretend_arm(monkeypatch, "Linux")
    monkeypatch.setattr(targets_module, "_CPU_INFO", cpu_info)
    target = host_target()
    assert (target.name, target.cpu, enabled(target)) == (expected, "generic", features)


def test_other_systems_on_arm_get_what_llvm_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_arm(monkeypatch, "Windows")
    assert host_target().name == "portable"


def test_a_vector_register_holds_lanes_by_their_size() -> None:
    assert [foreign_target(name).lanes(4) for name in ("avx512", "avx2", "neon")] == [16, 8, 4]


@pytest.mark.parametrize("u_max", [127, 255])
@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("avx512", r"\tvpdpbusd\t.*%zmm", r"pmaddubsw"),
        ("avx512bw", r"\tvpmaddubsw\t.*%zmm", r"vpdpbusd"),
        ("avxvnni", r"vpdpbusd\t.*%ymm", r"%zmm|pmaddubsw"),
        ("avx2", r"\tvpmaddubsw\t.*%ymm", r"%zmm|vpdpbusd|%[xy]mm(1[6-9]|2[0-9]|3[01])"),
        ("neon", r"\bsdot\b", r"\busdot\b"),
        ("neon_i8mm", r"\busdot\b", r"\bsdot\b"),
    ],
)
def test_dot4_uses_the_instruction_that_is_there_for_it(name: str, present: str, absent: str, u_max: int) -> None:
    assembly = compile_to_assembly([dot(u_max)], foreign_target(name))
    assert re.search(present, assembly)
    assert not re.search(absent, assembly)


def test_small_u_needs_fewer_instructions() -> None:
    """128 is not small: as a signed byte, which `sdot` takes, it is negative."""
    for name, instruction, counts in (("avx2", "vpmaddubsw", (2, 4, 4)), ("neon", "sdot", (4, 8, 8))):
        found = tuple(
            compile_to_assembly([dot(u_max)], foreign_target(name)).count(f"\t{instruction}\t")
            for u_max in (127, 128, 255)
        )
        assert found == counts


@pytest.mark.parametrize("architecture", Architecture)
def test_portable_code_needs_no_dot_product_instructions(architecture: Architecture) -> None:
    assembly = compile_to_assembly([dot()], foreign_target("portable", architecture))
    assert not re.search("vpdpbusd|pmaddubsw|sdot", assembly)


@pytest.mark.parametrize(
    ("name", "architecture", "forbidden"),
    [
        ("portable", Architecture.X86_64, r"%ymm|%zmm|\tv[a-z]|pshufb|roundps|\tcall|pmaddubsw"),
        ("avx2", None, r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])|vpdpbusd|\tcall"),
        ("avxvnni", None, r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])|\tcall"),
        ("avx512", None, r"\tcall"),
        ("avx512bw", None, r"vpdpbusd|\tcall"),
        ("neon", None, r"usdot|\tbl\t|\tz[0-9]"),
        ("portable", Architecture.AARCH64, r"sdot|\tbl\t|\tz[0-9]"),
    ],
)
def test_a_target_emits_no_instruction_above_it_and_no_library_calls(
    name: str, architecture: Architecture | None, forbidden: str
) -> None:
    assembly = compile_to_assembly([a_bit_of_everything()], foreign_target(name, architecture))
    assert "everything:" in assembly
    assert not re.search(forbidden, assembly)


def test_forcing_avx2_on_this_host_uses_no_avx512() -> None:
    if "avx2" not in host_target_names():
        pytest.skip("this machine has no AVX2")
    assembly = compile_to_assembly([a_bit_of_everything(), dot()], target_named("avx2"))
    assert "%ymm" in assembly
    assert not re.search(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])|vpdpbusd|gf2p8", assembly)


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_products_and_sums_are_not_contracted(name: str) -> None:
    assembly = compile_to_assembly([multiply_then_add()], foreign_target(name))
    assert re.search(r"\tv?f?mul(ps)?\t", assembly)
    assert not re.search("fmadd|fmla", assembly)
    assert re.search("fmadd|fmla", compile_to_assembly([a_bit_of_everything()], foreign_target(name)))


@pytest.mark.parametrize("name", [*X86_NAMES[:4], "neon"])
def test_addresses_are_never_integers(name: str) -> None:
    target = foreign_target(name)
    for text in (lower_to_llvm([a_bit_of_everything()], target), optimised_llvm([a_bit_of_everything()], target)):
        assert "getelementptr" in text
        assert "inttoptr" not in text
        assert "ptrtoint" not in text


def test_float_arithmetic_has_no_fast_math_flags() -> None:
    text = lower_to_llvm([a_bit_of_everything()], foreign_target("avx512"))
    assert "fmul" in text
    assert not re.search(r"\b(fast|reassoc|contract|nnan|ninf|nsz|arcp|afn|fmuladd)\b", text)


def test_variables_become_registers_and_loops_stay_loops() -> None:
    k = Kernel("three_rounds", acc=ptr(i32), u=ptr(u8), s=ptr(i8))
    acc, u, s = k.args
    total = k.var(k.load(acc, 16))
    with k.loop(0, 3) as i:
        for j in range(2):
            at = i * 128 + 64 * j
            total.set(k.dot4(total.get(), k.load(u + at, 64), k.load(s + at, 64)))
    k.store(acc, total.get())
    kernel = k.finish()
    target = foreign_target("avx512")
    assert "alloca" in lower_to_llvm([kernel], target)
    optimised = optimised_llvm([kernel], target)
    assert "alloca" not in optimised
    assert optimised.count("call <16 x i32> @llvm.x86.avx512.vpdpbusd.512") == 2
    assert "%rsp" not in compile_to_assembly([kernel], target)


def test_loops_that_fill_memory_do_not_become_library_calls() -> None:
    k = Kernel("fill", x=ptr(f32), n=i64)
    x, n = k.args
    with k.loop(0, n) as i:
        k.store(x + i, 0.0)
    assert "memset" not in optimised_llvm([k.finish()], foreign_target("avx512"))


def test_cpus_whose_compilers_prefer_256_bits_get_512_too() -> None:
    features = dict.fromkeys((*AVX512, "avx512vnni"), True)
    target = host_target(replace(machine(), cpu="icelake-server", features=features))
    assert "-prefer-256-bit" in target.features.split(",")
    assert "%zmm" in compile_to_assembly([multiply_then_add()], target)


def test_the_compiler_does_not_vectorise_loops() -> None:
    k = Kernel("sum", x=ptr(i32), n=i64, out=ptr(i32))
    x, n, out = k.args
    total = k.var(k.const(i32, 0))
    with k.loop(0, n) as i:
        total.set(total.get() + k.load(x + i))
    k.store(out, total.get())
    for i in range(8):
        k.store(x + i, k.load(x + 8 + i) + 1)
    text = optimised_llvm([k.finish()], foreign_target("avx512"))
    assert "add i32" in text
    assert not re.search(r"<\d+ x i32>", text)


def test_names_of_instruction_sets_are_unique_for_an_architecture() -> None:
    every: tuple[InstructionSet, ...] = targets_module._INSTRUCTION_SETS
    assert len({(each.name, each.architecture) for each in every}) == len(every)
