"""The man in the middle as a state machine: bytes and time in, actions out."""
