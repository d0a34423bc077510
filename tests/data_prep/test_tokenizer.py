"""The tokenizer and its chat template."""

from hypothesis import given
from hypothesis import strategies as st

from data_prep.tokenizer import CHARACTERS, EOS, PAD, START, UNKNOWN, build_tokenizer, prompt_ids, response_ids

TOKENIZER = build_tokenizer()
PLAIN = st.text(CHARACTERS, max_size=40).filter(lambda text: "<|" not in text)


def test_size_and_special_tokens():
    assert len(TOKENIZER) == 103 == 4 + 3 + 96  # special; role words; newline and 95 printable characters
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token, TOKENIZER.unk_token) == (EOS, PAD, UNKNOWN)
    assert TOKENIZER.eos_token_id != TOKENIZER.pad_token_id


def test_a_prompt_by_hand():
    tokens = TOKENIZER.convert_ids_to_tokens(prompt_ids(TOKENIZER, "12+3="))
    assert tokens == [START, "user", "\n", "1", "2", "+", "3", "=", EOS, "\n", START, "assistant", "\n"]


def test_a_response_by_hand():
    assert TOKENIZER.convert_ids_to_tokens(response_ids(TOKENIZER, "9750")) == ["9", "7", "5", "0", EOS]


@given(PLAIN)
def test_text_survives_a_round_trip(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == TOKENIZER.decode(ids, skip_special_tokens=True) == text
    assert TOKENIZER.unk_token_id not in ids


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), PLAIN), min_size=1, max_size=4))
def test_a_conversation_survives_a_round_trip(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    rendered = "".join(f"{START}{role}\n{content}{EOS}\n" for role, content in turns)
    for prompt in ("", f"{START}assistant\n"):
        ids = TOKENIZER.apply_chat_template(
            messages, add_generation_prompt=bool(prompt), tokenize=True, return_dict=False
        )
        assert TOKENIZER.decode(ids) == rendered + prompt


@given(PLAIN, PLAIN)
def test_a_response_is_what_the_template_would_write_after_the_prompt(prompt, response):
    """So that what was trained on is the conversation that the template renders (it ends in a line break more)."""
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    whole = TOKENIZER.apply_chat_template(messages, tokenize=True, return_dict=False)
    newline = TOKENIZER.encode("\n", add_special_tokens=False)
    assert prompt_ids(TOKENIZER, prompt) + response_ids(TOKENIZER, response) + newline == whole


def test_role_words_are_text_like_any_other():
    ids = TOKENIZER.encode("a user asks", add_special_tokens=False)
    assert len(ids) == len("a ") + 1 + len(" asks")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "a user asks"


def test_other_characters_become_unknown():
    ids = TOKENIZER.encode("9é٧", add_special_tokens=False)
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["9", UNKNOWN, UNKNOWN]
