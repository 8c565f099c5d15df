"""What people look at: a wing of four rooms, each of which may use those before it.

::

    Exchange, History ─┬─▶ lines    exchanges, records and statistics as text and JSON; the manual
                       ├─▶ why      what happened, in sentences: stories and findings
                       ├─▶ report   what stands out in recordings, as one page
                       └─▶ page     recordings in a browser
"""
