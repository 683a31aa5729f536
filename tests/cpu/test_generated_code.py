"""The code that LLVM makes of the backend's kernels: no instruction that a target does not stand for, no call of a
library, and the instructions that make them fast.

Targets that this machine runs are compiled as it would; for the others no feature is on but those they need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from cpu_catalogue import catalogue, functions_that_trace
from machine_code import (
    arm_beyond,
    arm_functions,
    arm_undefined,
    compiled_object,
    enabled_features,
    parse_elf,
    x86_instructions,
    x86_needs,
)
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.matmul.quantised import MatMulShape, trace_direct
from minfer.backends.cpu.panels import formats
from minfer.simd import (
    Architecture,
    KernelIR,
    Target,
    compile_to_assembly,
    foreign_target,
    host_target_names,
    llvm,
    target_named,
    this_machine,
)

X86, ARM = Architecture.X86_64, Architecture.AARCH64
MATMULS = ("trace_direct", "trace_direct_tiles", "trace_tiles")
WITH_FMA = (*MATMULS, "trace_float", *(f"trace_attention_{path}" for path in ("split", "tokens", "tiles")))


def runs_here(name: str, architecture: Architecture) -> bool:
    machine = this_machine()
    return machine.architecture is architecture and name in host_target_names(machine)


def target_of(name: str, architecture: Architecture) -> Target:
    return target_named(name) if runs_here(name, architecture) else foreign_target(name, architecture)


def every_kernel(target: Target) -> list[KernelIR]:
    return [kernel for family in catalogue(target.vector_bytes).values() for kernel in family]


def families(functions: Iterable[str]) -> dict[str, str]:
    """The function that traced a kernel, by the kernel's name."""
    return {name: name.rpartition("_")[0] for name in functions}


def one_matmul() -> list[KernelIR]:
    return [trace_direct(MatMulShape(formats.Q4_0, 32, StepWord.N_TOKENS))]


def test_every_kernel_of_the_backend_is_looked_at() -> None:
    kernels = catalogue(64)
    assert set(kernels) == functions_that_trace()
    assert all(kernels.values())


@pytest.mark.parametrize(
    ("name", "dot"),
    [
        ("avx512", r"^vpdpbusd zmm"),
        ("avx512bw", r"^vpmaddubsw zmm"),
        ("avxvnni", r"^vpdpbusd ymm"),
        ("avx2", r"^vpmaddubsw ymm"),
        ("portable", r"^pmullw xmm"),
    ],
)
def test_x86_code(name: str, dot: str) -> None:
    target = target_of(name, X86)
    kernels = every_kernel(target)
    found = compiled_object(kernels, target)
    assert {kernel.name for kernel in kernels} <= set(found.code)
    assert found.undefined == ()
    present = {feature.replace(".", "") for feature, there in this_machine().features.items() if there}
    for function, family in families(found.code).items():
        for feature, instruction in x86_needs(found.code[function]).items():
            assert feature in enabled_features(target), f"{function}: {instruction} needs {feature}"
            if runs_here(name, X86):
                assert feature in present, f"{function}: this machine lacks {feature}, which {instruction} needs"
        text = "\n".join(x86_instructions(found.code[function]))
        if family in MATMULS:
            assert re.search(dot, text, flags=re.MULTILINE), function
        if family in WITH_FMA and name != "portable":
            assert re.search(r"^vfmadd\w+ps", text, flags=re.MULTILINE), function


def test_x86_instructions_above_a_target_would_be_noticed() -> None:
    targets = {name: foreign_target(name, X86) for name in ("avx512", "avx512bw", "avxvnni", "avx2", "portable")}
    allowed = {name: enabled_features(target) for name, target in targets.items()}
    needs = {
        name: set(x86_needs(b"".join(compiled_object(one_matmul(), target).code.values())))
        for name, target in targets.items()
    }
    assert all(needs[name] <= allowed[name] for name in targets)
    assert "avx512vnni" in needs["avx512"] - allowed["avx512bw"]
    assert {"avx512f", "avx512bw"} <= needs["avx512bw"] - allowed["avx2"]
    assert needs["avxvnni"] - allowed["avx2"] == {"avxvnni"}
    assert {"avx", "avx2", "fma", "f16c"} <= needs["avx2"] - allowed["portable"]
    assert needs["portable"] == set()


@pytest.mark.parametrize(("name", "dot"), [("neon_i8mm", "usdot"), ("neon", "sdot"), ("portable", r"s?mull?2?")])
def test_arm_code(name: str, dot: str) -> None:
    target = target_of(name, ARM)
    kernels = every_kernel(target)
    assembly = compile_to_assembly(kernels, target)
    functions = arm_functions(assembly)
    assert {kernel.name for kernel in kernels} <= set(functions)
    assert arm_undefined(assembly) == set()
    assert arm_beyond(assembly, enabled_features(target)) == []
    for function, family in families(functions).items():
        text = functions[function]
        if family in MATMULS:
            assert re.search(rf"\t{dot}\tv\d+\.", text), function
        if family in WITH_FMA:
            assert re.search(r"\tfmla\tv\d+\.4s", text), function
        if family == "trace_rms_norm":
            # In float64, products and sums apart.
            assert re.search(r"\tfmul\tv\d+\.2d", text), function
            assert re.search(r"\tfadd\tv\d+\.2d", text), function


def test_arm_instructions_above_a_target_would_be_noticed() -> None:
    for name, dot, less in (("neon_i8mm", "usdot", {"neon", "dotprod"}), ("neon", "sdot", {"neon"})):
        beyond = arm_beyond(compile_to_assembly(one_matmul(), foreign_target(name)), less)
        assert {line.partition("\t")[0] for line in beyond} == {dot}
    for line in (
        "fadd\tv0.8h, v1.8h, v2.8h",
        "fmov\th0, w1",
        "add\tz0.s, z1.s, z2.s",
        "ld1w\t{ z0.s }, p0/z, [x0]",
        "whilelo\tp0.s, x0, x1",
        "smax\tw0, w1, w2",
        "casal\tx0, x1, [x2]",
        "bfdot\tv0.4s, v1.8h, v2.8h",
    ):
        assert arm_beyond(f"f:\n\t{line}\n", {"neon", "dotprod", "i8mm"}) == [line]
    for line in ("fcvtl\tv0.4s, v1.4h", "fcvt\ts0, h1", "add\tv0.8h, v1.8h, v2.8h", "smax\tv0.4s, v1.4s, v2.4s"):
        assert arm_beyond(f"f:\n\t{line}\n", ()) == []


def test_a_call_outside_would_be_noticed() -> None:
    text = (
        "declare float @expf(float)\ndefine float @f(float %x) {\n  %y = call float @expf(float %x)\n  ret float %y\n}"
    )
    target = foreign_target("avx2")
    found = parse_elf(llvm.emit_object(text, triple=target.triple, cpu=target.cpu, features=target.features))
    assert set(found.code) == {"f"}
    assert "expf" in found.undefined
    target = foreign_target("neon")
    assembly = llvm.emit_assembly(text, triple=target.triple, cpu=target.cpu, features=target.features)
    assert arm_undefined(assembly) == {"expf"}
