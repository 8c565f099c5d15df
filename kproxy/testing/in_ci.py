"""Whether this is continuous integration, where a new recording would be lost, and looked at by
nobody: so recording there is refused unless the user allows it."""

from __future__ import annotations

import os

_VARIABLES = ("CI", "BUILD_NUMBER", "TF_BUILD")
"""Variables that are set in continuous integration."""


def in_ci() -> bool:
    """Return whether this runs in continuous integration."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in _VARIABLES)
