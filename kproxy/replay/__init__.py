"""Replay: a recording is the broker.

::

    recording ─▶ load ─▶ Loaded ─▶ Broker (a `proxy.machine.Machine`) ◀─▶ any client, any version

`load` rebuilds topics, logs, groups and offsets; `broker` serves them; one small module per area
has the handlers. What the state does not model is answered by `semantic`, or refused.
"""
