"""Audits which GPUs the kernels in shared libraries were compiled for, without a GPU."""
