"""Compiling kernels, and looking into them: 95 to 99."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class AuditError(FactoryError):
    """A library cannot be looked into, or there is nothing to judge it by."""

    exit_code = 95


class AuditFailedError(FactoryError):
    """A library holds no code that runs on the arch."""

    exit_code = 96
