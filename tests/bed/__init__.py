"""The test bed: real brokers, real clients, and kproxy between them.

::

    clients/*  ──▶  proxies (kproxy run)  ──▶  kafka · mock_cluster · container
    programs        recorded (what it wrote)       brokers, chosen by `brokers`
       ▲                                              ▲
       └────── jvm, node: fetched once into .cache/testbed ──────┘

What a machine lacks is a named skip (`needs`); with KPROXY_REQUIRE_ALL=1 it is a failure.
Everything here runs as a program of its own, as a user would run it; nothing is patched.
"""
