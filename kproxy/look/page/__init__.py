"""The page: exchanges in a browser, as they were recorded.

::

    recordings ─▶ found: places ─▶ routes: rows, overview, one exchange as JSON ─▶ files/*.js
                                        └ access: a code in the address, then a cookie

The browser holds no recording: it asks for the rows that it shows. The server is that of the
control port (`net.control`), with its limits and its rules for Host and Origin.
"""
