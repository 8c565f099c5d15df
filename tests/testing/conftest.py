"""Fixtures of the tests of `kproxy.testing`."""

from __future__ import annotations

import pytest


@pytest.fixture
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests are those of somebody at a desk."""
    for name in ("CI", "BUILD_NUMBER", "TF_BUILD", "KPROXY_BROKER"):
        monkeypatch.delenv(name, raising=False)
