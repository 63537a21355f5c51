"""What an answer's token is for. A line always has as many tokens, so where a token stands in its line says it."""

NEXT, PLAN, VALUE, REST, LAST = range(5)
PARTS = ("next line", "plan copied", "value found", "rest", "last value")
LINE = [REST] * 44
LINE[1] = NEXT
LINE[4] = LINE[6] = PLAN
LINE[11] = LINE[12] = LINE[17] = LINE[18] = VALUE
END = 6  # tokens of "Answer: 65" and what ends the answer


def codes(count):
    """Of an answer of so many tokens, its end among them."""
    lines, rest = divmod(count - END, len(LINE))
    assert rest == 0, count
    return LINE * lines + [LAST] * END


def of(index, count):
    return PARTS[codes(count)[index]]
