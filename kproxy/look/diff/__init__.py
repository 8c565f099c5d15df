"""Two recordings side by side: how the second differs from the first, by what they mean."""
