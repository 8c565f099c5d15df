"""Replay: a recording is the broker.

::

    recording ─▶ load ─▶ Loaded ─▶ ReplayBroker (a `proxy.machine.Machine`) ◀─▶ any client

`load` rebuilds topics, logs, groups and offsets; `broker` serves them; one small module per area
has the handlers. `semantic` answers requests that the state does not model, or they are refused.

Invariant: only `opening` and `index_file`, which make a `Loaded` of files, do IO. All else is
sans-IO; it reads the frames of a recording through a function that it is given
(`Store.read_frame`).
"""
