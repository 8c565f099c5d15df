"""What errors of the Python clients are called."""

from __future__ import annotations

from kproxy.wire.protocol import error_name


def name(error: Exception) -> str:
    """Kafka's name of an error that a broker sent; of any other the client's own."""
    code = getattr(error, "errno", None)
    if isinstance(code, int) and code > 0:
        return error_name(code)
    return type(error).__name__
