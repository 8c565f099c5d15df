"""The recording as the client: what is sent to a real cluster, in what order, and what came back.

::

    Exchange … ─▶ order: in which order, after which responses ─▶ request
                                                                    │ decode
                     maps, learned of pairs of responses ──▶ Substitution.translate
                                                                    │ route, encode in a version
                                                                    ▼     that both know
    differences ◀── compare ◀── the recorded response ┬ the new ◀── Sender ⇄ `net.sending`
                     maps ◀───── Substitution.learn ──┘

Nothing here knows a socket, a file or a clock.
"""
