"""TLS: the trust and the identity of kproxy, on either side.

::

    options, client.properties ─▶ settings ─▶ contexts ─▶ net (handshake, tls_transport) ─▶ peer
                                     ▲
            stores (PEM, PKCS12, jks) ┘        authority ─▶ certificates of kproxy's own CA

Invariants: certificates and host names are verified unless an option named for it turns that off.
A user's private key is never written to a disk decrypted; that of kproxy's CA stands in one file,
0600. SSLKEYLOGFILE has no effect.
"""
