"""What happened, in sentences: the stories of `kproxy why`, each of one subject.

::

    FILE… subject:value ─▶ stories ─▶ a story for each recording: number, group, topic, fault, …
                                          │  └─ StorySource: reads the recording as often as asked
                                          └─ Findings: what all exchanges prove, in one reading

Invariants: every sentence is based on the recording alone, and names the exchanges that it is based
on (`kproxy show --frame N` shows them). If the recording does not show a cause, a sentence says so.
"""
