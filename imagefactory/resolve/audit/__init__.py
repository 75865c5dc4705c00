"""Auditing kernels: for which chips the code inside shared libraries was compiled, without a GPU."""
