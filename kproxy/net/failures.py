"""The counts of what failed between kproxy and its peers, for the metrics.

::

    Handshakes, Pump ─▶ tls ────┐
    Logins ───────────▶ logins ─┴─▶ metrics

Invariant: the keys are a few words of kproxy's own, so that no peer can make up series.
"""

from __future__ import annotations

from collections import Counter

import attrs


@attrs.frozen(eq=False)
class Failures:
    """The failures of one run."""

    tls: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Failures of TLS, by the peer ("client", "broker") and the kind."""
    logins: Counter[str] = attrs.field(factory=Counter)
    """kproxy's own logins that failed, by kind; all of `authenticate.KINDS` where it logs in."""
