"""TLS: the trust and the identity of kproxy, on either side.

::

    options, client.properties ─▶ settings ─▶ contexts ─▶ net (handshake, tls_transport)
                                     ▲
                 stores (PEM, PKCS12) ┘        authority ─▶ certificates of kproxy's own CA

Invariants: certificates and host names are verified unless an option named for it turns that off.
No decrypted private key is ever written to a disk. The environment changes nothing: SSLKEYLOGFILE
has no effect.
"""
