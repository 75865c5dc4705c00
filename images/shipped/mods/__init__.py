"""Mods: small, declarative source changes that vLLM has not released yet, applied exactly or not at all."""
