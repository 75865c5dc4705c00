"""Compiling vLLM and FlashInfer for an arch, in a container of pinned compilers."""
