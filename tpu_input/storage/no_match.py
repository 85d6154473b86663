"""Message for a pattern that matches no file."""


def no_match(pattern: str) -> str:
    """Returns the message, which names a command that shows what there is."""
    return f"no file matches {pattern!r}; quote the pattern, and check it with: ls {pattern}"
