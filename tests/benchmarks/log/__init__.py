"""What a recording would cost as a log of bytes: pieces and notes in order, no rows.

::

    pump ─ entries ─▶ LogBuilder ─▶ LogWriter: a message for each piece ─▶ log ─▶ Follower ─▶ rows

    python -m tests.benchmarks.log check [--seeds 500]    the follower's rows beside the builder's
    python -m tests.benchmarks.log follow                 what the follower takes for an exchange
    python -m tests.benchmarks.log run …                  `kproxy run` that records a log

`tests.benchmarks.proxies --log` has the last beside kproxy. The prototype does not repeat what is
pending at the head of a file and after a loss, and has no index and no reader.
"""
