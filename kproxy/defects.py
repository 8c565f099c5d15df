"""The text about unforeseen exceptions, in one line for a report.

Exceptions quote what they failed on, which may be a secret of a peer. So quotations are left out,
and the place in the code stands for them.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

DEFECT = "by a defect in kproxy"
_QUOTATIONS = re.compile(r"b?['\"].*['\"]", re.DOTALL)
"""All from the first quotation to the last, since not every exception escapes what it quotes."""


def defect(error: Exception) -> str:
    """Return one line about an unforeseen exception, which asks to report it."""
    said = f"{type(error).__name__}: {error}"
    what, left_out = _QUOTATIONS.subn("…", said)
    what = what.splitlines()[0]
    if left_out:
        what += f" ({_place(error)})"
    return f"{DEFECT}, please report it: {what}"


def _place(error: Exception) -> str:
    """Return the file and the line in which an exception was raised."""
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    return f"{Path(last.filename).name}:{last.lineno}" if last else "raised nowhere"
