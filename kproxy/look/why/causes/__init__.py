"""The causes of failures: what an error means, what caused it in this recording, what helps.

::

    Case(history, failure) ─▶ table.CAUSES[error] ─┬─ meaning        what brokers mean by it
                                                   ├─ before, after ─▶ its cause: what the history
                                                   │                   shows then, and at its end
                                                   └─ remedy         what the user can do

Finders are in modules by field: `producers`, `groups`, `cluster`, `records`, `security`. Each
yields sentences that name the exchanges that they are based on, or one that says what is not in
the recording.
"""
