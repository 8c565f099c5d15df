"""Sockets and waiting: the room that uses trio, besides the commands that start it."""
