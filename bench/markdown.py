"""Tables and lines of pages in Markdown."""
LINE_CHARACTERS = 120


def table(header, rows):
    rule = "|" + "---|" * len(header)
    return "\n".join(["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(r) + " |" for r in rows)])


def wrapped(text):
    lines = [""]
    for word in text.split(" "):
        fits = len(lines[-1]) + 1 + len(word) <= LINE_CHARACTERS
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if fits else [lines[-1], word]
    return "\n".join(lines)
