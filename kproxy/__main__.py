"""`python -m kproxy` is the command `kproxy`."""

from __future__ import annotations

import sys

from kproxy.cli import main

sys.exit(main())
