r"""Other writings of an answer that are the same answer, and answers close to it that are not."""

from __future__ import annotations

import re
from fractions import Fraction

_FRAC = re.compile(r"\\[dt]?frac(?![A-Za-z])")
_NUMBER = re.compile(r"-?\d+")


def same(answer: str) -> dict[str, str]:
    """Responses that hold the answer: at least ten writings that any answer has, and more that it has by its kind."""
    brackets = answer.replace(r"\left", "").replace(r"\right", "")
    forms = {
        "bare": rf"\boxed{{{answer}}}",
        "in a sentence": rf"So the answer is $\boxed{{{answer}}}$. I hope it is correct.",
        "display, with spaces": "The answer is:\n$$\n\\boxed{ " + answer + " }\n$$\n",
        "dollars within": rf"\boxed{{${answer}$}}",
        "parentheses within": rf"\boxed{{\({answer}\)}}",
        "display style": rf"\boxed{{\displaystyle {answer}}}",
        "full stop within": rf"\boxed{{{answer}.}}",
        "newlines within": f"\\boxed{{\n  {answer}\n}}",
        "after another box": rf"First \boxed{{0}}. No: \fbox{{{answer}}}",
        "braces": rf"\boxed{{{{{answer}}}}}",
        "bold": rf"**Answer** \[\boxed{{\mathbf{{{answer}}}}}\]",
        "thin spaces": rf"\boxed {{\, {answer} \;}}",
        "other fraction command": rf"\boxed{{{_FRAC.sub(_other_frac, answer)}}}",
        "other brackets": rf"\boxed{{{brackets if brackets != answer else _with_left_and_right(answer)}}}",
    }
    if _NUMBER.fullmatch(answer):
        sign, digits = ("-", answer[1:]) if answer[0] == "-" else ("", answer)
        forms |= {
            "leading zeros": rf"\boxed{{{sign}00{digits}}}",
            "decimal": rf"\boxed{{{answer}.0}}",
            "assignment": rf"\boxed{{x = {answer}}}",
            "unit": rf"\boxed{{{answer}\text{{ cm}}^2}}",
            "plain unit": rf"\boxed{{{answer} degrees}}",
            "over one": rf"\boxed{{\frac{{{answer}}}{{1}}}}",
            "product": rf"\boxed{{1 \cdot {answer}}}",
        }
        if len(digits) > 3:
            forms["thousands"] = rf"\boxed{{{sign}{int(digits):,}}}"
            forms["thin thousands"] = rf"\boxed{{{sign}{int(digits):,}}}".replace(",", r"{,}")
    if part := re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", answer):
        forms["slash"] = rf"\boxed{{{part[1]}{part[2]}/{part[3]}}}"
        forms["not reduced"] = rf"\boxed{{{part[1]}\frac{{{2 * int(part[2])}}}{{{2 * int(part[3])}}}}}"
        forms["sign above"] = rf"\boxed{{\frac{{{part[1]}{part[2]}}}{{{part[3]}}}}}"
        forms["decimal"] = rf"\boxed{{{float(Fraction(int(part[1] + part[2]), int(part[3]))):.12f}}}"
    return forms


def _other_frac(command: re.Match[str]) -> str:
    return r"\dfrac" if command[0] == r"\frac" else r"\frac"


def _with_left_and_right(answer: str) -> str:
    return re.sub(r"(?<!\\)([)\]])", r"\\right\1", re.sub(r"(?<!\\)([(\[])", r"\\left\1", answer))


def misses(answer: str) -> dict[str, str]:
    """Answers close to it that are wrong: each digit and each inner sign changed, off by one, an element missing."""
    near: dict[str, str] = {}
    for digit in re.finditer(r"\d", answer):
        other = str((int(digit[0]) + 1) % 10)
        near[f"digit at {digit.start()}"] = answer[: digit.start()] + other + answer[digit.end() :]
    for sign in re.finditer(r"(?<=[\w}) ])[-+](?=[\s\w\\(])", answer):
        other = "-" if sign[0] == "+" else "+"
        near[f"sign at {sign.start()}"] = answer[: sign.start()] + other + answer[sign.end() :]
    if _NUMBER.fullmatch(answer):
        near |= {"plus one": str(int(answer) + 1), "minus one": str(int(answer) - 1), "longer": answer + "1"}
        near |= {"shorter": answer[:-1] or "0", "tenfold": answer + "0"}
    if answer.startswith("-"):
        near["positive"] = answer[1:]
    elif re.search(r"[1-9]", answer) and not re.search(r"[,=]|\\text|\\begin|\\pm", answer):
        near["negative"] = f"-({answer})" if re.search(r"[-+]", answer) else f"-{answer}"
    return near | _list_misses(answer)


def _list_misses(answer: str) -> dict[str, str]:
    """Of a list, set, tuple or interval: an element left out, one more, and of a tuple another order."""
    if "," not in answer or re.search(r"\\cup|\\!|\d,\d{3}", answer):
        return {}
    opening, body, closing = re.fullmatch(
        r"((?:x \\in )?(?:\\left)?(?:[(\[]|\\\{)?)(.*?)((?:\\right)?(?:[)\]]|\\\})?)", answer
    ).groups()
    parts = body.split(",")
    near = {f"without {i}": opening + ",".join(parts[:i] + parts[i + 1 :]) + closing for i in range(len(parts))}
    near["one more"] = opening + ",".join([*parts, " 99"]) + closing
    if opening and "{" not in opening:
        near["swapped"] = opening + ",".join(reversed(parts)) + closing
    return near
