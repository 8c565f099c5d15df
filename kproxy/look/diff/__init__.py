"""Two recordings side by side: what the second means otherwise than the first."""
