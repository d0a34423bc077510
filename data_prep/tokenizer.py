"""A character tokenizer with Qwen's chat format: one vocabulary for all tasks."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, START, EOS, UNKNOWN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>"
ROLES = ("system", "user", "assistant")  # one token each, as in Qwen: letter by letter they would double the prompt
CHARACTERS = "\n" + "".join(chr(code) for code in range(ord(" "), ord("~") + 1))  # printable ASCII
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """103 tokens: 4 special ones, 3 role words, newline and printable ASCII; other characters become <|unknown|>."""
    vocabulary = {token: index for index, token in enumerate((PAD, START, EOS, UNKNOWN, *ROLES, *CHARACTERS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()  # join without the spaces that word-level decoding puts in
    backend.add_special_tokens([PAD, START, EOS, UNKNOWN])
    backend.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """The token ids of a user's message as verl's agent loop renders them, generation prompt included."""
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def response_ids(tokenizer: PreTrainedTokenizerBase, response: str) -> list[int]:
    """The token ids of a finished response, end-of-sequence included."""
    return [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
