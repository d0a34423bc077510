"""The tiny Qwen3, its supervised start and its measured accuracy."""

import numpy as np
import pytest
import torch

from data_prep import addition, tiny_model
from data_prep.problems import Problem, draw_problems
from data_prep.tiny_model import (
    IGNORED,
    Accuracy,
    SupervisedSettings,
    generate,
    learning_rate_share,
    measure,
    parameter_count,
    seeded_torch,
    supervised_batch,
    supervised_start,
    tiny_config,
    untrained_model,
)
from data_prep.tokenizer import build_tokenizer, prompt_ids

TOKENIZER = build_tokenizer()
QUICK = SupervisedSettings(steps=12, batch_size=16, demonstrations=64)


def demonstrations(count=64):
    problems = draw_problems(addition, np.random.default_rng(0), count, heldout=False)
    return supervised_batch(TOKENIZER, [(problem.prompt, problem.answer) for problem in problems])


def trained(settings=QUICK, seed=0, pairs=None):
    ids, labels = demonstrations() if pairs is None else supervised_batch(TOKENIZER, pairs)
    with seeded_torch(seed, threads=1):
        model = untrained_model(TOKENIZER)
        losses = supervised_start(model, ids, labels, np.random.default_rng(seed), settings)
    return model, losses


@pytest.fixture(scope="module")
def by_heart():
    """A model that knows two sums by heart, with prompts of 16 and 12 tokens and answers of 5 and 3."""
    pairs = [("123+456=", "9750"), ("5+7=", "21")]
    return trained(SupervisedSettings(steps=80, batch_size=16, demonstrations=2, warmup_steps=5), pairs=pairs)[0]


def test_config():
    config = tiny_config(TOKENIZER)
    model = untrained_model(TOKENIZER)
    assert config.vocab_size == len(TOKENIZER) == model.get_input_embeddings().weight.shape[0]
    assert model.lm_head.weight is model.get_input_embeddings().weight  # tied
    assert 200_000 <= parameter_count(model) <= 300_000
    assert config.max_position_embeddings >= 128
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_labels_are_the_response_and_its_end():
    ids, labels = supervised_batch(TOKENIZER, [("123+456=", "9750"), ("5+7=", "21")])
    assert ids.shape == labels.shape == (2, 21)  # 16 tokens of prompt, 4 digits, end
    for row, (prompt, response) in enumerate([("123+456=", "9750<|im_end|>"), ("5+7=", "21<|im_end|>")]):
        scored = labels[row] != IGNORED
        assert TOKENIZER.decode(ids[row][scored]) == TOKENIZER.decode(labels[row][scored]) == response
        first = int(scored.nonzero()[0])
        assert ids[row, :first].tolist() == prompt_ids(TOKENIZER, prompt)
    assert ids[1, 15:].tolist() == [TOKENIZER.pad_token_id] * 6  # 12 + 2 + 1 = 15 tokens, then padding


def test_the_loss_is_that_of_transformers():
    """Our slice of the logits and shift of the labels against the model's own loss, on rows of unequal length."""
    ids, labels = supervised_batch(TOKENIZER, [("123+456=", "9750"), ("5+7=", "21")])
    mask = (ids != TOKENIZER.pad_token_id).long()
    with seeded_torch(0, threads=1):
        model = untrained_model(TOKENIZER)
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 2, size=16))
        expected = model(input_ids=ids[rows], attention_mask=mask[rows], labels=labels[rows]).loss.item()
        settings = SupervisedSettings(steps=1, batch_size=16, demonstrations=2)
        losses = supervised_start(model, ids, labels, np.random.default_rng(0), settings)
    assert losses == [pytest.approx(expected, rel=1e-5)]


def test_a_short_start_lowers_the_loss():
    _, losses = trained(SupervisedSettings(steps=40, batch_size=32, demonstrations=64))
    assert len(losses) == 40
    assert losses[0] > np.log(103) * 0.9  # about uniform over 103 tokens, or worse
    assert np.mean(losses[-5:]) < 2.2 < losses[0]  # below uniform over ten digits, 2.3


def test_the_same_seed_gives_the_same_weights():
    first, second, other = trained()[0], trained()[0], trained(seed=1)[0]
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, second, other)]
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])


def test_the_seed_decides_the_initial_weights():
    def first_weights(seed):
        with seeded_torch(seed, threads=1):
            return untrained_model(TOKENIZER).get_input_embeddings().weight

    assert torch.equal(first_weights(0), first_weights(0))
    assert not torch.equal(first_weights(0), first_weights(1))


def test_the_learning_rate_rises_and_falls():
    """warm-up over 10 steps times decay from 1 to .1 over 100: step 4 is .5 * (1 - .9 * .04) = .482."""
    settings = SupervisedSettings(steps=100, warmup_steps=10)
    assert learning_rate_share(0, settings) == pytest.approx(0.1)
    assert learning_rate_share(4, settings) == pytest.approx(0.482)
    assert learning_rate_share(9, settings) == pytest.approx(1 - 0.9 * 0.09)
    assert learning_rate_share(100, settings) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["steps", "batch_size", "demonstrations"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} .* at least 1, got 0"):
        SupervisedSettings(**{name: 0})


def test_what_is_known_by_heart_is_measured_as_right(by_heart):
    """Also: responses end by themselves."""
    known = [Problem("123+456=", "9750", "9750", "a"), Problem("5+7=", "21", "21", "b")]
    wrong = [Problem("123+456=", "9751", "9751", "a"), Problem("5+7=", "21", "21", "b")]
    with seeded_torch(0, threads=1):
        accuracy = measure(by_heart, TOKENIZER, addition, known, k=16)
        assert accuracy.greedy == 1.0 and accuracy.mean_at_k > 0.9
        assert measure(by_heart, TOKENIZER, addition, wrong, k=16).greedy == 0.5


def test_an_accuracy_by_hand(monkeypatch):
    """Rollouts right: 3 of 4 and 0 of 4, so mean@4 = (3/4 + 0/4) / 2 = .375. Greedy: the second of two, .5."""
    known = [Problem("123+456=", "9750", "9750", "a"), Problem("100+100=", "0020", "0020", "b")]

    def canned(model, tokenizer, prompts, k, *, max_new_tokens, greedy=False):
        assert (prompts, max_new_tokens) == (["123+456=", "100+100="], 5)
        return [["975"], ["0020"]] if greedy else [["9750", "9751", "9750", "9750"], ["9750"] * 4]

    monkeypatch.setattr(tiny_model, "generate", canned)
    assert measure(None, TOKENIZER, addition, known, k=4) == Accuracy(mean_at_k=0.375, greedy=0.5)


def test_responses_come_back_in_the_order_of_the_prompts(by_heart):
    prompts = ["5+7=", "123+456=", "5+7=", "123+456=", "5+7="]
    with seeded_torch(0, threads=1):
        out = generate(by_heart, TOKENIZER, prompts, 1, max_new_tokens=8, greedy=True, prompts_at_once=2)
    assert out == [["21"], ["9750"], ["21"], ["9750"], ["21"]]


def test_a_prompt_gets_the_same_greedy_response_alone_and_beside_a_longer_one():
    prompts = ["5+7=", "123+456=", "9="]
    with seeded_torch(0, threads=1):
        model = untrained_model(TOKENIZER).eval()  # a fresh model: its responses hang on every position and mask
        together = generate(model, TOKENIZER, prompts, 1, max_new_tokens=12, greedy=True)
        alone = [generate(model, TOKENIZER, [prompt], 1, max_new_tokens=12, greedy=True)[0] for prompt in prompts]
    assert together == alone


def test_rollouts_are_drawn_from_the_whole_distribution_at_temperature_one():
    """Mean log-probability of first tokens against its expectation. top_k=50, transformers' default, or temperature .9
    would raise it by more than ten standard errors."""
    k = 8000
    with seeded_torch(0, threads=1):
        model = untrained_model(TOKENIZER).eval()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt_ids(TOKENIZER, "1+1=")])).logits[0, -1]
        texts = generate(model, TOKENIZER, ["1+1="], k, max_new_tokens=1)[0]
    # Special tokens are not decoded, so compare given that the token is a character: ids 7 to 102.
    log_p = {TOKENIZER.decode([7 + index]): value for index, value in enumerate(logits[7:].log_softmax(-1).tolist())}
    p = np.exp(list(log_p.values()))
    expected = np.dot(p, list(log_p.values()))
    shown = [log_p[text] for text in texts if text in log_p]
    assert len(shown) > k * 0.8
    assert abs(np.mean(shown) - expected) < 5 * np.std(shown) / len(shown) ** 0.5


def test_torchs_generator_and_threads_are_put_back():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with seeded_torch(5, threads=1):
        torch.rand(3)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_threads_are_put_back_after_an_error():
    threads = torch.get_num_threads()
    with pytest.raises(KeyError), seeded_torch(5, threads=threads + 1):
        raise KeyError
    assert torch.get_num_threads() == threads
