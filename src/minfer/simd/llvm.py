"""The only file that touches llvmlite: host facts, assembling, optimising, emitting and loading, in typed functions."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

import llvmlite  # type: ignore[import-untyped]
import llvmlite.binding as binding  # type: ignore[import-untyped]

# Levels of the optimiser of LLVM assembly, and of the selection and scheduling of machine instructions.
_OPTIMISER_LEVEL = 2
_CODE_GENERATOR_LEVEL = 3


class LLVMRejectsError(Exception):
    """LLVM can't parse, verify or link a module; the text is LLVM's own."""


def versions() -> tuple[str, str]:
    """The versions of llvmlite and of the LLVM in it."""
    return llvmlite.__version__, ".".join(map(str, binding.llvm_version_info))


def llvm_major() -> int:
    """The first number of LLVM's version."""
    return int(binding.llvm_version_info[0])


def host_triple() -> str:
    return str(binding.get_process_triple())


def host_cpu() -> str:
    """LLVM's name for the CPU of this machine."""
    return str(binding.get_host_cpu_name())


def host_features() -> Mapping[str, bool]:
    """LLVM's names of CPU features, and whether this machine (as far as its system tells) has them."""
    return {str(name): bool(present) for name, present in binding.get_host_cpu_features().items()}


def emit_object(text: str, *, triple: str, cpu: str, features: str) -> bytes:
    """Optimises a module given as LLVM assembly, and compiles it to an object file.

    Raises:
        LLVMRejectsError: the text is not a valid module.
    """
    module, machine = _optimised(text, triple, cpu, features)
    return bytes(machine.emit_object(module))


def emit_assembly(text: str, *, triple: str, cpu: str, features: str) -> str:
    """Like `emit_object`, for reading: the machine's assembly."""
    module, machine = _optimised(text, triple, cpu, features)
    return str(machine.emit_assembly(module))


def optimised_text(text: str, *, triple: str, cpu: str, features: str) -> str:
    """The module after the optimiser, as LLVM assembly."""
    module, _ = _optimised(text, triple, cpu, features)
    return str(module)


class LoadedObject:
    """An object file linked into this process. Its addresses are valid as long as this object lives."""

    def __init__(self, image: bytes, exports: Iterable[str], *, triple: str, cpu: str, features: str) -> None:
        binding.initialize_native_target()
        # The code is compiled already, but creating a JIT asks for a printer of assembly.
        binding.initialize_native_asmprinter()
        machine = _machine(triple, cpu, features)
        # JITLink keeps an object's sections together, which the small code model relies on. Windows lacks it.
        self._jit = binding.create_lljit_compiler(machine, use_jit_link=platform.system() != "Windows")
        builder = binding.JITLibraryBuilder().add_object_img(image).add_current_process()
        for name in exports:
            builder.export_symbol(name)
        try:
            self._library = builder.link(self._jit, "kernels")
        except RuntimeError as error:
            raise LLVMRejectsError(str(error)) from error

    def address(self, name: str) -> int:
        return int(self._library[name])


def _optimised(text: str, triple: str, cpu: str, features: str) -> tuple[binding.ModuleRef, binding.TargetMachine]:
    machine = _machine(triple, cpu, features)
    try:
        module = binding.parse_assembly(text, binding.create_context())
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise LLVMRejectsError(str(error)) from error
    options = binding.create_pipeline_tuning_options(speed_level=_OPTIMISER_LEVEL)
    # Kernels are unrolled and vectorised by whoever writes them.
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.loop_interleaving = False
    options.slp_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def _machine(triple: str, cpu: str, features: str) -> binding.TargetMachine:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=_CODE_GENERATOR_LEVEL, reloc="pic", codemodel="small"
    )
