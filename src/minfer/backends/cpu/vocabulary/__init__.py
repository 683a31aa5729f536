"""The passes over the vocabulary that samplers need, by native code."""

from minfer.backends.cpu.vocabulary.native import NativeVocabularyOps

__all__ = ["NativeVocabularyOps"]
