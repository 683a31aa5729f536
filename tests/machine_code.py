"""Reads compiled kernels: the functions and symbols of an object file, and what their instructions need of a CPU."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from minfer.simd import KernelIR, Target
from minfer.simd.compile import compile_to_object

_SYMBOL_TABLE = 2
_SYMBOL_BYTES = 24
_FUNCTION = 2
# What every x86-64 CPU has, as the decoder names it.
_BASE_X86 = {"INTEL8086", "INTEL386", "INTEL486", "X64", "CMOV", "MULTIBYTENOP", "PAUSE", "SSE", "SSE2"}
# The decoder's names that are not LLVM's but for case, `_` and `.`.
_LLVM_NAMES = {"BMI1": "bmi", "PREFETCHW": "prfchw", "PCLMULQDQ": "pclmul"}


@dataclass(frozen=True)
class ElfObject:
    """An object file for 64-bit Linux.

    Attributes:
        code: the bytes of each function by name.
        undefined: names of symbols that something else would have to define.
    """

    code: Mapping[str, bytes]
    undefined: tuple[str, ...]


def compiled_object(kernels: Iterable[KernelIR], target: Target) -> ElfObject:
    """The kernels as an object for Linux, whatever this system is."""
    # The format of the file follows from the triple, the instructions from the rest.
    linux = replace(target, triple=f"{target.architecture.value}-unknown-linux-gnu")
    image, _ = compile_to_object(kernels, linux)
    return parse_elf(image)


def parse_elf(image: bytes) -> ElfObject:
    """The functions and the undefined symbols of an object file."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]
    code, undefined = {}, []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        names = sections[section[6]][4]
        for at in range(section[4] + _SYMBOL_BYTES, section[4] + section[5], _SYMBOL_BYTES):
            name_at, info, _, index, value, n_bytes = struct.unpack_from("<IBBHQQ", image, at)
            name = image[names + name_at : image.index(b"\0", names + name_at)].decode()
            if index == 0:
                undefined.append(name)
            elif info & 15 == _FUNCTION:
                start = sections[index][4] + value
                code[name] = image[start : start + n_bytes]
    return ElfObject(code, tuple(undefined))


def x86_instructions(code: bytes) -> list[str]:
    """x86-64 code as text, Intel's way."""
    return [str(instruction) for instruction in _decoded(code)]


def x86_needs(code: bytes) -> dict[str, str]:
    """The CPU features that x86-64 code needs beyond the first such CPU's, by LLVM's names without dots; for each an
    instruction that does."""
    names = {value: name for name, value in vars(_iced().CpuidFeature).items() if isinstance(value, int)}
    needs: dict[str, str] = {}
    for instruction in _decoded(code):
        for feature in {names[each] for each in instruction.cpuid_features()} - _BASE_X86:
            name = _LLVM_NAMES.get(feature, feature.lower().replace("_", ""))
            needs.setdefault(name, str(instruction))
    return needs


def _iced() -> Any:
    """The decoder: its tables are made from the manuals of the CPUs' makers."""
    return pytest.importorskip("iced_x86")


def _decoded(code: bytes) -> list[Any]:
    instructions = list(_iced().Decoder(64, code))
    assert not any(each.is_invalid for each in instructions)
    return instructions


def enabled_features(target: Target) -> set[str]:
    """What a target lets LLVM use, without dots in the names."""
    return {flag[1:].replace(".", "") for flag in target.features.split(",") if flag.startswith("+")}


# Instructions of Armv8.0-A with Advanced SIMD.
_ARMV8_0 = """
add addp adds addv adrp and ands asr b b.eq b.ge b.gt b.hi b.hs b.le b.lo b.ls b.lt b.mi b.ne b.pl bfi bfxil bic
bics bif bit bl blr br bsl cbnz cbz ccmn ccmp cinc cinv clz cls cmeq cmge cmgt cmhi cmhs cmle cmlt cmn cmp cmtst
cneg cnt csel cset csetm csinc csinv csneg dup eon eor ext extr fabd fabs fadd faddp fccmp fcmeq fcmge fcmgt fcmle
fcmlt fcmp fcsel fcvt fcvtas fcvtl fcvtl2 fcvtms fcvtn fcvtn2 fcvtns fcvtzs fcvtzu fdiv fmadd fmax fmaxnm fmin
fminnm fmla fmls fmov fmsub fmul fneg fnmadd fnmsub fnmul frinta frintm frintn frintp frintx frintz fsqrt fsub ins
ld1 ld1r ld2 ld2r ld3 ld4 ldar ldaxr ldnp ldp ldpsw ldr ldrb ldrh ldrsb ldrsh ldrsw ldur ldurb ldurh ldursb ldursh
ldursw ldxr lsl lsr madd mla mls mneg mov movi movk movn movz msub mul mvn mvni neg negs nop not orn orr prfm prfum
rbit ret rev rev16 rev32 rev64 ror saddl saddl2 saddlp saddw saddw2 sbfiz sbfx scvtf sdiv shl shll shll2 shrn shrn2
sli smaddl smax smaxp smaxv smin sminp sminv smlal smlal2 smlsl smlsl2 smov smsubl smulh smull smull2 sqxtn sqxtn2
sqxtun sqxtun2 sri sshl sshll sshll2 sshr ssra ssubl ssubl2 st1 st2 st3 st4 stlr stlxr stnp stp str strb strh stur
sturb sturh stxr sub subs sxtb sxth sxtw tbl tbnz tbx tbz trn1 trn2 tst uaddl uaddl2 uaddlp uaddlv uaddw uaddw2
ubfiz ubfx ucvtf udiv umaddl umax umaxp umaxv umin uminp uminv umlal umlal2 umlsl umlsl2 umov umsubl umulh umull
umull2 uqxtn uqxtn2 ushl ushll ushll2 ushr usra usubl usubl2 uxtb uxth uzp1 uzp2 xtn xtn2 yield zip1 zip2
"""
_ARM_EXTENSIONS = {"sdot": "dotprod", "udot": "dotprod", "usdot": "i8mm", "sudot": "i8mm"}
_HALF_CONVERSIONS = ("fcvt", "fcvtl", "fcvtl2", "fcvtn", "fcvtn2")
# The same names stand for instructions of later extensions, with other operands.
_ON_GENERAL_REGISTERS = ("smax", "smin", "umax", "umin", "abs", "cnt", "ctz")


def arm_beyond(assembly: str, features: Iterable[str]) -> list[str]:
    """The instructions of 64-bit Arm assembly that need more than Armv8.0-A and the features given, or are unknown."""
    base, given = set(_ARMV8_0.split()), set(features)
    beyond = []
    for line in arm_instructions(assembly):
        mnemonic, _, operands = line.partition("\t")
        known = mnemonic in base or _ARM_EXTENSIONS.get(mnemonic) in given
        is_scalable = re.search(r"(^|[\s,{\[])([zp]\d+)([./,\s]|$)", operands)
        is_half = (
            mnemonic not in _HALF_CONVERSIONS
            and mnemonic.startswith(("f", "scvtf", "ucvtf"))
            and re.search(r"\.[48]h\b|\bh\d+\b", operands)
        )
        is_general = mnemonic in _ON_GENERAL_REGISTERS and re.match(r"[wx]\d", operands)
        if not known or is_scalable or is_half or is_general:
            beyond.append(line)
    return beyond


def arm_instructions(assembly: str) -> list[str]:
    """Mnemonic, tab, operands; without directives, labels and comments."""
    return [re.sub(r"\s*(//.*)?$", "", line[1:]) for line in assembly.splitlines() if re.match(r"\t[a-z]", line)]


def arm_functions(assembly: str) -> dict[str, str]:
    """The assembly of each function by name."""
    pieces = re.split(r"^(\w+):.*\n", assembly, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def arm_undefined(assembly: str) -> set[str]:
    """Names that branches and addresses refer to, and that the file does not define."""
    defined = set(re.findall(r"^([.\w$]+):", assembly, flags=re.MULTILINE))
    used: set[str] = set()
    for line in arm_instructions(assembly):
        mnemonic, _, operands = line.partition("\t")
        if mnemonic in ("b", "bl") or mnemonic.startswith("b."):
            used.add(operands)
        elif mnemonic == "adrp":
            used.add(operands.split(", ")[1].removeprefix(":got:"))
    return used - defined
