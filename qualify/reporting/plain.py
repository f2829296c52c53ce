"""Text of servers and files made fit to be shown: it moves no cursor, sets no colour and breaks no line."""

from __future__ import annotations


def one_line(text: str) -> str:
    """A text as one line.

    Args:
        text: Any text, of a server's log too.

    Returns:
        The text with a space for each line break, control character and other character that is not printed.
    """
    return "".join(character if character.isprintable() else " " for character in text)
