"""What is on the wire: the protocol, and what records carry."""
