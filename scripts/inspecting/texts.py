"""Tokens as text that is safe to print: a rollout may hold anything, escape sequences and half a character included."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format, surrogate, private, unassigned, line ends
_NAMED = {"\n": "↵", "\t": "⇥", "\x7f": "␡"}

Decode = Callable[[Sequence[int]], str]


def visible(text: str) -> str:
    """The text on one line, with every character that a terminal would act on, or not show, made visible.

    A newline becomes ↵, escape ␛, the other ASCII controls their pictures, the rest (right-to-left override, zero-width
    space, ...) its number: ⟨U+202E⟩.
    """
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else f"⟨U+{code:04X}⟩"


def cut(text: str, most: int) -> str:
    """The text, or its two ends and how much lies between, where it has more than `most` characters."""
    if len(text) <= most:
        return text
    first, last = most - most // 2, most // 2
    return f"{text[:first]} […{len(text) - first - last:,} characters…] {text[len(text) - last :]}"


def token_ids(ids: Sequence[int]) -> str:
    """What is shown without a tokenizer."""
    return " ".join(map(str, ids))


def decoder(folder: Path | None) -> Decode:
    """What makes text of token ids: the tokenizer in `folder`, special tokens shown; without one, the ids.

    Raises:
        ValueError: there is no tokenizer in the folder.
    """
    if folder is None:
        return token_ids
    if not folder.is_dir():
        raise ValueError(f"--tokenizer must be a folder with a tokenizer, got {folder}. The model's own has one.")
    from transformers import AutoTokenizer  # seconds to import, which those without --tokenizer are spared

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises whatever it came across
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{folder} holds no tokenizer that transformers can load ({told}).") from error
    known = len(tokenizer)

    def decode(ids: Sequence[int]) -> str:
        if any(not 0 <= i < known for i in ids):
            return f"(not of this tokenizer, which has {known} tokens) {token_ids(ids)}"
        return tokenizer.decode(ids, skip_special_tokens=False)

    return decode
