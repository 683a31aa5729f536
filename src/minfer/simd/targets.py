"""What kernels are compiled for: the instruction sets by name, and which of them this machine runs.

A target enables exactly the CPU features of its list: those that its name stands for and, on this machine, the others
that the machine has and the instruction set allows. A feature that the machine lacks is never enabled, and a lower
target never enables a higher one's.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from minfer.errors import UnsupportedError
from minfer.simd import llvm


class Architecture(Enum):
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Dot4Lowering(Enum):
    """How `dot4` becomes instructions."""

    VNNI_512 = "vpdpbusd on 512, 256 and 128 bits"
    VNNI_256 = "vpdpbusd in its AVX encoding, on 256 and 128 bits"
    MADD_512 = "vpmaddubsw and vpmaddwd on 512, 256 and 128 bits"
    MADD_256 = "vpmaddubsw and vpmaddwd on 256 and 128 bits"
    SDOT = "sdot on 128 bits"
    USDOT = "usdot on 128 bits"
    PLAIN = "multiplications of 16 bits, in plain LLVM"


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A named level: the features that it needs, as LLVM names them, and what they allow."""

    name: str
    architecture: Architecture
    vector_bytes: int
    dot4: Dot4Lowering
    needs: tuple[str, ...]
    # Features of the machine whose names start like this stay off: most belong to higher levels.
    excludes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """One instruction set on one kind of CPU. `vector_bytes` is the width of a vector register."""

    name: str
    architecture: Architecture
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    dot4: Dot4Lowering

    def lanes(self, element_bytes: int) -> int:
        """How many elements of that size a vector register holds."""
        return self.vector_bytes // element_bytes

    @property
    def is_plain_x86(self) -> bool:
        """Whether this is x86-64 as it began: SSE2, with no fma, f16, rounding or byte shuffle."""
        return self.architecture is Architecture.X86_64 and self.dot4 is Dot4Lowering.PLAIN


_AVX2_NEEDS = ("avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "popcnt")
_AVX512_NEEDS = (*_AVX2_NEEDS, "avx512f", "avx512bw", "avx512dq", "avx512vl")
# LLVM makes byte shifts of GFNI's instructions, which compete with vpdpbusd for ports: shift and mask are faster.
_SLOW = ("gfni",)
# Extensions of general registers and matrix units, which only new CPUs have: no kernel was ever measured with them.
_ABOVE_AVX512 = (*_SLOW, "amx", "avx10", "egpr", "push2pop2", "ppx", "ndd", "ccmp", "nf", "cf", "zu")
_ABOVE_AVX2 = (*_ABOVE_AVX512, "avx512", "avxvnni", "avxifma", "avxneconvert")
_X86, _ARM = Architecture.X86_64, Architecture.AARCH64

_CPU_INFO = Path("/proc/cpuinfo")
# Linux's names of Arm features, and LLVM's.
_LINUX_ARM_FEATURES = {"asimd": "neon", "asimddp": "dotprod", "i8mm": "i8mm", "atomics": "lse"}

# Best first.
_INSTRUCTION_SETS = (
    InstructionSet("avx512", _X86, 64, Dot4Lowering.VNNI_512, (*_AVX512_NEEDS, "avx512vnni"), _ABOVE_AVX512),
    InstructionSet("avx512bw", _X86, 64, Dot4Lowering.MADD_512, _AVX512_NEEDS, (*_ABOVE_AVX512, "avx512vnni")),
    InstructionSet("avxvnni", _X86, 32, Dot4Lowering.VNNI_256, (*_AVX2_NEEDS, "avxvnni"), (*_ABOVE_AVX512, "avx512")),
    InstructionSet("avx2", _X86, 32, Dot4Lowering.MADD_256, _AVX2_NEEDS, _ABOVE_AVX2),
    InstructionSet("neon_i8mm", _ARM, 16, Dot4Lowering.USDOT, ("neon", "dotprod", "i8mm"), ()),
    InstructionSet("neon", _ARM, 16, Dot4Lowering.SDOT, ("neon", "dotprod"), ()),
    InstructionSet("portable", _X86, 16, Dot4Lowering.PLAIN, ("sse2",), ()),
    InstructionSet("portable", _ARM, 16, Dot4Lowering.PLAIN, ("neon",), ()),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about a computer that decide what runs on it."""

    architecture: Architecture
    triple: str
    cpu: str
    features: Mapping[str, bool]


def this_machine() -> Machine:
    """The machine that this process runs on.

    Raises:
        UnsupportedError: for a CPU that is neither x86-64 nor 64-bit Arm.
    """
    triple = llvm.host_triple()
    architecture = _architecture_of(triple)
    features = dict(llvm.host_features())
    if architecture is Architecture.AARCH64:
        features |= dict.fromkeys(_unreported_arm_features(), True)
    return Machine(architecture, triple, llvm.host_cpu(), features)


def host_target(machine: Machine | None = None) -> Target:
    """The best target that this machine (or the one given) runs."""
    machine = machine or this_machine()
    return _target(_running(machine)[0], machine)


def host_target_names(machine: Machine | None = None) -> tuple[str, ...]:
    """The names of the targets that this machine (or the one given) runs, best first."""
    return tuple(each.name for each in _running(machine or this_machine()))


def target_named(name: str, machine: Machine | None = None) -> Target:
    """The target of that name for this machine (or the one given), to force a lower one than `host_target()`.

    Raises:
        UnsupportedError: no such name, or the machine can't run it; lists those that it runs.
    """
    machine = machine or this_machine()
    running = _running(machine)
    for each in running:
        if each.name == name:
            return _target(each, machine)
    raise UnsupportedError(f"target {name!r} on this machine ({machine.cpu})", tuple(each.name for each in running))


def foreign_target(name: str, architecture: Architecture | None = None) -> Target:
    """The target of that name with no feature beyond what the name stands for, on any machine.

    It is for `compile_to_assembly`: its code need not run here. `portable` exists for two architectures: give one.

    Raises:
        UnsupportedError: no such name; lists those there are.
    """
    for each in _INSTRUCTION_SETS:
        if each.name == name and architecture in (None, each.architecture):
            triple = f"{each.architecture.value}-unknown-linux-gnu"
            cpu = "x86-64" if each.architecture is Architecture.X86_64 else "generic"
            return _new_target(each, triple, cpu, _flags(*each.needs))
    raise UnsupportedError(f"target {name!r}", tuple(dict.fromkeys(each.name for each in _INSTRUCTION_SETS)))


def _running(machine: Machine) -> list[InstructionSet]:
    return [
        each
        for each in _INSTRUCTION_SETS
        if each.architecture is machine.architecture and all(machine.features.get(need) for need in each.needs)
    ]


def _target(level: InstructionSet, machine: Machine) -> Target:
    if machine.architecture is Architecture.AARCH64:
        # LLVM does not list what an Arm CPU lacks, and the CPU's name would enable features that the system hides.
        optional = ("lse",) if machine.features.get("lse") else ()
        return _new_target(level, machine.triple, "generic", _flags(*level.needs, *optional))
    if level.dot4 is Dot4Lowering.PLAIN:
        return _new_target(level, machine.triple, "x86-64", _flags(*level.needs))
    # Every feature is named, present or not: what the CPU's name stands for may be hidden from this machine.
    flags = [
        f"{'+' if present and not name.startswith(level.excludes) else '-'}{name}"
        for name, present in sorted(machine.features.items())
    ]
    if level.vector_bytes == 64:
        # Compilers prefer 256 bits on many CPUs for fear of lower clock rates; kernels ask for what they want.
        flags.append("-prefer-256-bit")
    return _new_target(level, machine.triple, machine.cpu, ",".join(flags))


def _flags(*features: str) -> str:
    return ",".join(f"+{feature}" for feature in features)


def _unreported_arm_features() -> list[str]:
    """The features of an Arm CPU that LLVM does not ask the system for, by LLVM's names."""
    if platform.system() == "Darwin":
        # Every Apple CPU for Macs has these.
        return ["neon", "dotprod"]
    if platform.system() == "Linux":
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        words = next((line.split() for line in lines if line.startswith("Features")), [])
        return [_LINUX_ARM_FEATURES[word] for word in words if word in _LINUX_ARM_FEATURES]
    return []


def _new_target(level: InstructionSet, triple: str, cpu: str, features: str) -> Target:
    return Target(level.name, level.architecture, triple, cpu, features, level.vector_bytes, level.dot4)


def _architecture_of(triple: str) -> Architecture:
    machine = triple.partition("-")[0]
    if machine in ("x86_64", "amd64"):
        return Architecture.X86_64
    if machine in ("aarch64", "arm64"):
        return Architecture.AARCH64
    raise UnsupportedError(f"CPU architecture {machine!r}", ("x86-64", "64-bit Arm"))
