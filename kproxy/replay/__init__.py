"""Replay: a recording is the broker.

::

    recording ─▶ load ─▶ Loaded ─▶ Broker (a `proxy.machine.Machine`) ◀─▶ any client, any version

`load` rebuilds topics, logs, groups and offsets; `broker` serves them; one small module per area
has the handlers. What the state does not model is answered by `semantic`, or refused.

Invariant: only `opening` and `index_file`, which make a `Loaded` of files, do IO. What serves it is
sans-IO, and has the frames of a recording read by a function that it is given (`Store.read_frame`).
"""
