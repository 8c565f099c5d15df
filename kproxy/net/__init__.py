"""Sockets, and all that waits: trio lives here, and in what starts it."""
