"""Sockets and waiting: the wing that uses trio, besides the commands that start it.

::

    tls         certificates, keys and settings of TLS
    registry    where schemas come from: a schema registry, a folder
    net itself  sockets, the pump between them and a machine, the recorder's task, the control port

`net` itself uses the two rooms; they know no trio.
"""
