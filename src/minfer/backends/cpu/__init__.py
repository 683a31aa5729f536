"""The CPU backend: kernels traced for this very CPU, over weights packed in panels."""
