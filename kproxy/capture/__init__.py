"""Captures of packets (tcpdump, Wireshark) as the entries of a recording.

::

    pcap, pcapng ─▶ file ─▶ Packet ─▶ packets ─▶ TcpSegment ─▶ tcp ─▶ Arrival
                                                                      │
            recording ◀─ Entry ◀─ the proxy's own streams ◀─ conversation

Invariants: it knows no socket and no clock: times are those of the packets. What a capture says is
not trusted: memory is bounded (`tcp`, `conversation`), and time is linear in the size of a capture.
"""
