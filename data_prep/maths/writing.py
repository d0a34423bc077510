"""Rules of writing: what is the same answer whatever it means, settled before math-verify is asked.

`clean` takes away what does not change an answer (layout, units, a full stop), `key` gives one writing to what differs
only in spaces and braces, and `exact` reads whole numbers, fractions and decimals. All are pure and linear.
"""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = (
    "degrees?|radians?|percent|dollars?|cents?|euros?|pounds?|points?|units?|people|students?|ways?|times|inch(?:es)?|"
    "foot|feet|ft|yards?|miles?|mph|(?:milli|centi|kilo)?met(?:er|re)s?|mm|cm|km|(?:milli|kilo)?grams?|mg|kg|tons?|"
    "(?:milli)?lit(?:er|re)s?|ml|seconds?|minutes?|hours?|days?|weeks?|months?|years?"
)
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "π": r"\pi ", "∞": r"\infty ", "°": "", "×": r"\times ", "·": r"\cdot ", "√": r"\sqrt "}
)
# A command ends where a letter does not follow; a backslash before it would make it a line break of a matrix.
_RULES = [
    (
        re.compile(
            r"(?<!\\)\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|boldsymbol|mathbf|mathit|bm)(?![A-Za-z])"
        ),
        "",
    ),
    (re.compile(r"(?<!\\)\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<!\\)\\(?:text(?:bf|it|rm|normal)|mathrm|mbox|hbox)(?![A-Za-z])\s*(?=\{)"), r"\\text"),
    (re.compile(r"(?<=\d)(?:,?\s*\\!|\{,\}|\\,)\s*(?=\d{3}(?!\d))"), ","),  # 10,\!080 and 10{,}080 and 10\,080
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|[~\s]+"), " "),
    (re.compile(r"\\?\$|(?<!\\)\\[()\[\]]"), ""),  # dollars of money and of mathematics, \( \) and \[ \]
    (re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|(?<!\\)\\degree(?![A-Za-z])|\\?%"), ""),
    (re.compile(r"\{\s*,\s*\}"), ","),
    (re.compile(r",?\s*\\text\s*\{\s*(?:and|or)\s*\}|(?:(?<=[\d})])|,)\s+(?:and|or)\s+(?=[-\d\\({])"), ","),
    (re.compile(r"\\text\s*\{([^{}A-Za-z\\]*)\}"), r"\1"),  # \text{5}
]
_UNITS = [
    re.compile(r"(?<=[\w}).\]])\s*\\text\s*\{[^{}]*\}\s*(?:\^\s*\{?\s*\d\s*\}?)?\s*$"),  # 15 \text{ cm}^2
    re.compile(rf"(?<=[\d}})])\s*(?:(?:square|sq|cubic)\s+)?(?:{UNITS})(?:\s*\^\s*\{{?\s*[23]\s*\}}?)?\s*$"),
]
_PLAIN = re.compile(r"-?[0-9]+")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_WHOLE_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\s?\d{3})+(?:\.\d+)?")


def clean(answer: str) -> str:
    r"""An answer without what does not change it.

    Taken away: spaces around, a full stop or comma at the end, \left and \right, \displaystyle, bold, $ and \( \),
    currency, ^\circ, a percent sign, a unit at the end (any \text{...} behind a number, or a word of UNITS), and an
    outer pair of braces. \dfrac is \frac, `and` between answers a comma, and 10,080 with its comma in any writing is
    10080 where it is the whole answer or a part of a fraction: (1,234) stays a pair.
    """
    if _PLAIN.fullmatch(answer):
        return answer  # the most frequent answer by far
    text = answer.translate(_CHARACTERS)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _bare(text)
    for pattern in _UNITS:
        text = pattern.sub("", text)
    text = _bare(text)
    if _WHOLE_THOUSANDS.fullmatch(text):
        return text.replace(",", "").replace(" ", "")
    return re.sub(r"(?<=\{)\s*[-\d,]+\s*(?=\})", lambda part: _THOUSANDS.sub(_without_commas, part[0]), text)


def _bare(text: str) -> str:
    """Without what stands around it: spaces, punctuation at its ends, and pairs of braces."""
    text = text.lstrip(" ,;:").rstrip(" .,;:")
    while text.startswith("{") and text.endswith("}") and _one_group(text):
        text = text[1:-1].lstrip(" ,;:").rstrip(" .,;:")
    return text


def _without_commas(number: re.Match[str]) -> str:
    return number[0].replace(",", "")


def _one_group(text: str) -> bool:
    """Whether the first brace is closed by the last character and not before."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth and brace.end() < len(text):
            return False
    return not depth


def key(cleaned: str) -> str:
    r"""The writing by which two cleaned answers are compared as text: no spaces, and braces only where they matter.

    A space between two digits stays, so that `3 5` is not 35; \frac43 is \frac{4}{3} and x^{2} is x^2.
    """
    if _PLAIN.fullmatch(cleaned):
        return cleaned
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", cleaned)
    text = re.sub(r"\\frac(\d)(?=[\d{])", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}", text)
    text = re.sub(r"\\sqrt([A-Za-z\d])(?![A-Za-z\d])", r"\\sqrt{\1}", text)
    return re.sub(r"([\^_])\{([A-Za-z\d])\}", r"\1\2", text)


_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?:\\frac\{(?P<over>-?\d+)\}\{(?P<under>-?\d+)\}|(?P<left>\d+)/(?P<right>\d+)|(?P<plain>\d+\.?\d*|\.\d+))"
)


def exact(text: str) -> Fraction | None:
    r"""The number that a `key` writes as 12, -3/4, \frac{3}{4}, 0.75 or .75; None for everything else."""
    number = _NUMBER.fullmatch(text)
    if number is None or not text.isascii():
        return None
    sign = -1 if number["sign"] == "-" else 1
    if number["plain"]:
        return sign * Fraction(number["plain"])
    over, under = int(number["over"] or number["left"]), int(number["under"] or number["right"])
    return sign * Fraction(over, under) if under else None


_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")


def both_signs(cleaned: str) -> str:
    r"""Every item of a list with \pm as two items: 1 \pm \sqrt{2} is 1 + \sqrt{2}, 1 - \sqrt{2}.

    math-verify does so for a sum alone, and not within a fraction or a tuple.
    """
    if "\\pm" not in cleaned:
        return cleaned
    braced = re.fullmatch(r"\\\{(.*)\\\}", cleaned)
    items: list[str] = []
    for item in _items(braced[1] if braced else cleaned):
        items.append(_PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "pm" else "-", item))
        if "\\pm" in item:
            items.append(_PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "pm" else "+", item))
    return ",".join(items)


def _items(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def as_words(text: str) -> str | None:
    r"""The words of an answer that is no mathematics, in lower case: \text{(C)} -> c, \text{Evelyn} -> evelyn.

    Returns:
        None for anything but one \text{...}, or one plain word of at least three letters.
    """
    wrapped = re.fullmatch(r"\\text\s*\{([^{}\\]*)\}", text)
    if wrapped is None and not re.fullmatch(r"[A-Za-z]{3,}", text):
        return None
    return plain(text)


def plain(text: str) -> str:
    r"""An answer as words: without \text{} around it and brackets, in lower case, single spaces."""
    wrapped = re.fullmatch(r"\\text\s*\{([^{}\\]*)\}", text)
    return " ".join((wrapped[1] if wrapped else text).strip(" .,()").casefold().split())
