"""TLS: whom kproxy trusts, and who it says that it is, on either side.

::

    options, client.properties ─▶ settings ─▶ contexts ─▶ net (handshake, tls_transport)
                                     ▲
                 stores (PEM, PKCS12) ┘        authority ─▶ certificates of kproxy's own CA

Invariants: certificates and host names are verified unless one option, named for it, says no. No
decrypted private key is ever written to a disk. The environment changes nothing: SSLKEYLOGFILE has
no effect.
"""
