"""scripts/inspect_buffer.py on checkpoints as a run writes them: numbers, texts, pictures, what it says of damage."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image
from transformers import PreTrainedTokenizerFast

from data_prep.tokenizer import build_tokenizer, prompt_ids, response_ids
from scripts import inspect_buffer
from scripts.inspecting.plot import BARS, bar_edges
from scripts.inspecting.reading import PROMPT, RESPONSE, find_buffer, read_buffer
from scripts.inspecting.summary import MOST_AGES, by_age
from scripts.inspecting.texts import cut, visible
from tests.factories import binary_groups, id_rows, make_columns, make_table, numbers, repeatable
from verl_replay import checkpoint
from verl_replay.buffer import RolloutBuffer
from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.trainers import columns

STEPS, GROUPS, SIZE = 6, 3, 4
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp[/red][link=http://x]\r\\"
FINGERPRINT = {"temperature": 1.0, "columns": ["prompts"], "hostile": "[bold]\x1b[31m"}


def tokenizer_with(text: str) -> PreTrainedTokenizerFast:
    """The tasks' own tokenizer, and one token more."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([text])
    return tokenizer


def make_step(tokenizer, rng: np.random.Generator, step: int) -> tuple[list[list[float]], dict[str, Ragged]]:
    """Rewards and columns of a step's rollouts, with texts to read."""
    rewards = [[1.0, 0.0, 0.0, 0.0], *binary_groups(rng, GROUPS - 1, SIZE)]
    prompts = [f"step {step}, group {g}: 12+3=" for g in range(GROUPS) for _ in range(SIZE)]
    answers = [f"[bold]answer[/bold] {i}" + "9" * int(rng.integers(0, 30)) for i in range(GROUPS * SIZE)]
    answers[0] = HOSTILE + "!" * 900
    texts = {
        PROMPT: [prompt_ids(tokenizer, p) for p in prompts],
        RESPONSE: [response_ids(tokenizer, a) for a in answers],
    }
    _, made = make_columns(rewards, lengths=[len(ids) for ids in texts[RESPONSE]], rng=rng)
    return rewards, {**made, **{name: Ragged.from_rows(ids, np.int64) for name, ids in texts.items()}}


def make_buffer(tokenizer) -> RolloutBuffer:
    """Six steps' rollouts, some drawn, some evicted in the middle of a step."""
    buffer, rng = RolloutBuffer(capacity=1000, seed=0), np.random.default_rng(3)
    for step in range(1, STEPS + 1):
        rewards, made = make_step(tokenizer, rng, step)
        lengths = made[RESPONSE].lengths.tolist()
        table = make_table(rewards, born=step, first_group=GROUPS * (step - 1), lengths=lengths)
        buffer.add(
            table.stored(step), Rows({k: made[k] for k in made if k != columns.SCORE}, np.arange(len(table) + 1))
        )
        buffer.draw(rng.integers(0, len(buffer), size=5))
    buffer.keep(np.arange(len(buffer)) % 7 != 3)
    return buffer


def save(buffer: RolloutBuffer, checkpoints: Path, step: int) -> Path:
    folder = checkpoints / f"global_step_{step}"
    checkpoint.save(folder / "replay", buffer.state(), step=step, fingerprint=FINGERPRINT)
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_with(HOSTILE)


@pytest.fixture(scope="module")
def tokenizer_folder(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def buffer(tokenizer) -> RolloutBuffer:
    return make_buffer(tokenizer)


@pytest.fixture
def folder(buffer, tmp_path) -> Path:
    """global_step_6 of a run that saved step 2 too."""
    save(RolloutBuffer(capacity=5, seed=0), tmp_path, 2)
    return save(buffer, tmp_path, STEPS)


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    status = inspect_buffer.main([str(argument) for argument in arguments])
    return (status, *capsys.readouterr())


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_table_by_hand(buffer, folder, tmp_path, capsys):
    status, printed, errors = run(capsys, folder, "--json", tmp_path / "out.json", "--top", 3)
    assert (status, errors) == (0, "")
    told, table = json.loads((tmp_path / "out.json").read_text()), numbers(buffer.table)
    assert (told["step"], told["rollouts"]) == (STEPS, len(table))
    assert told["groups"] == len({x["group"] for x in table})
    assert told["bytes_on_disk"] == sum(file.stat().st_size for file in (folder / "replay").iterdir())
    assert told["fingerprint"] == FINGERPRINT
    assert told["columns"][RESPONSE] == "int64" and told["columns"]["old_log_probs"] == "float32"
    assert told["never_drawn_share"] == pytest.approx(sum(x["uses"] == 0 for x in table) / len(table))

    assert [line["from"] for line in told["ages"]] == [line["to"] for line in told["ages"]] == list(range(STEPS))
    for line in told["ages"]:
        of_age = [x for x in table if STEPS - x["born"] == line["from"]]
        assert line["count"] == len(of_age)
        assert line["mean_abs_advantage"] == pytest.approx(statistics.fmean(abs(x["advantage"]) for x in of_age))
        assert line["mean_uses"] == pytest.approx(statistics.fmean(x["uses"] for x in of_age))
        assert line["mean_reward"] == pytest.approx(statistics.fmean(x["reward"] for x in of_age))
        assert line["never_drawn_share"] == pytest.approx(statistics.fmean(x["uses"] == 0 for x in of_age))

    rows = buffer._store.gather(np.arange(len(buffer)))
    by_hand = {
        "advantage": [x["advantage"] for x in table],
        "|advantage|": [abs(x["advantage"]) for x in table],
        "reward": [x["reward"] for x in table],
        "uses": [x["uses"] for x in table],
        "response tokens": [len(rows.columns[RESPONSE].row(i)) for i in range(len(table))],
        "prompt tokens": [len(rows.columns[PROMPT].row(i)) for i in range(len(table))],
        "tokens with loss": [x["tokens"] for x in table],
    }
    assert list(told["distributions"]) == list(by_hand)
    for name, values in by_hand.items():
        got = told["distributions"][name]
        expected = (min(values), statistics.median(values), max(values), statistics.fmean(values))
        assert (got["min"], got["median"], got["max"], got["mean"]) == pytest.approx(expected, abs=1e-12)
        at = 0.9 * (len(values) - 1)
        low, high = (sorted(values)[f(at)] for f in (math.floor, math.ceil))
        assert got["p90"] == pytest.approx(low + (at - math.floor(at)) * (high - low))
    for text in ("Replay buffer", f"{told['bytes_on_disk'] / 1e3:,.1f} kB", "temperature: 1.0", "groups"):
        assert text in printed


def test_the_rollouts_on_top(buffer, folder, tokenizer_folder, tmp_path, capsys):
    """By |A|: the one correct of 4, A = .75 / (.5 + 1e-6) = 1.5 up to rounding; of equal ones the newest first."""
    run(capsys, folder, "--json", tmp_path / "out.json", "--top", 3, "--tokenizer", tokenizer_folder)
    told, table = json.loads((tmp_path / "out.json").read_text()), numbers(buffer.table)
    largest = sorted(table, key=lambda x: (-abs(x["advantage"]), -table.index(x)))[:3]
    most = sorted(table, key=lambda x: (-x["uses"], -table.index(x)))[:3]
    assert abs(told["top_abs_advantage"][0]["advantage"]) == pytest.approx(1.5, rel=1e-5)
    for shown, expected in ((told["top_abs_advantage"], largest), (told["top_uses"], most)):
        for name in ("group", "born", "advantage", "reward", "uses"):
            assert [entry[name] for entry in shown] == [x[name] for x in expected]
        for entry in shown:
            assert entry["age"] == STEPS - entry["born"]
            group = entry["group"] % GROUPS
            assert entry["prompt"].startswith(f"<|im_start|>user↵step {entry['born']}, group {group}: 12+3=<|im_end|>")
            assert entry["rows"] == 1


def test_nothing_is_changed(buffer, folder, capsys):
    before = {file: file.read_bytes() for file in (folder / "replay").iterdir()}
    assert run(capsys, folder)[0] == 0
    assert {file: file.read_bytes() for file in (folder / "replay").iterdir()} == before


def test_rollouts_of_several_rows(tokenizer, tmp_path, capsys):
    """Lengths are of all rows together; shown is the last row, which was scored."""
    rng = np.random.default_rng(0)
    _, made = make_step(tokenizer, rng, 1)
    rows = Rows(
        {k: made[k].take(np.arange(7)) for k in made}, np.array([0, 2, 3, 4, 7])
    )  # 4 rollouts of 2, 1, 1 and 3 rows
    buffer = RolloutBuffer(capacity=10, seed=0)
    buffer.add(make_table([[1, 0, 0, 0]]).stored(1), rows)
    stored = read_buffer(find_buffer(save(buffer, tmp_path, 1)))
    lengths = made[RESPONSE].lengths.tolist()
    assert stored.lengths[RESPONSE].tolist() == [sum(lengths[:2]), lengths[2], lengths[3], sum(lengths[4:7])]
    assert run(capsys, tmp_path, "--top", 1, "--json", tmp_path / "o.json")[0] == 0
    entry = json.loads((tmp_path / "o.json").read_text())["top_abs_advantage"][0]
    assert entry["rows"] == 2
    assert entry["response"] == " ".join(map(str, made[RESPONSE].row(1).tolist()))


def test_an_empty_buffer(tmp_path, capsys):
    """Before the first survivor."""
    save(RolloutBuffer(capacity=5, seed=0), tmp_path, 1)
    status, printed, errors = run(capsys, tmp_path, "--json", tmp_path / "o.json", "--plot", tmp_path / "o.png")
    assert (status, errors) == (0, "")
    told = json.loads((tmp_path / "o.json").read_text())
    assert (told["rollouts"], told["ages"], told["never_drawn_share"]) == (0, [], None)
    assert (tmp_path / "o.png").stat().st_size > 10_000


def test_many_ages_share_lines():
    """100 ages, 0 to 99, in lines of 4: 0-3, ..., 96-99."""
    tables = [make_table([[1, 0]], born=step, first_group=step) for step in range(1, 101)]
    table = type(tables[0]).concat(tables)
    lines = by_age(table, 100)
    assert len(lines) == 25 <= MOST_AGES
    assert [(line["from"], line["to"], line["count"]) for line in lines] == [(4 * i, 4 * i + 3, 8) for i in range(25)]


# ---- text ------------------------------------------------------------------------------------------------------------


def test_hostile_text_neither_reaches_the_terminal_nor_is_read_as_markup(folder, tokenizer_folder, capsys):
    status, printed, _ = run(capsys, folder, "--tokenizer", tokenizer_folder, "--top", 100)
    assert status == 0
    flat = " ".join(printed.split())
    assert "␛[2J␛]0;owned␇⟨U+202E⟩gnp[/red]" in flat.replace(" ", "")
    assert "[bold]answer[/bold]" in flat
    assert "hostile: [bold]␛[31m" in flat  # the manifest is not trusted either
    assert not {c for c in printed if (ord(c) < 32 and c != "\n") or c == "\u202e"}


def test_without_a_tokenizer_ids_are_shown(buffer, folder, capsys):
    _, printed, _ = run(capsys, folder, "--top", 100)
    ids = buffer._store.gather(np.array([1])).columns[RESPONSE].row(0)
    assert " ".join(map(str, ids.tolist()))[:40] in " ".join(printed.split())


def test_a_tokenizer_of_another_model_is_noticed(tmp_path, tokenizer_folder, capsys):
    """Tokens up to 151,936, a tokenizer of 104."""
    _, made = make_columns([[1, 0]], lengths=[5, 5])
    buffer = RolloutBuffer(capacity=5, seed=0)
    buffer.add(make_table([[1, 0]]).stored(1), Rows(made, np.arange(3)))
    _, printed, _ = run(capsys, save(buffer, tmp_path, 1), "--tokenizer", tokenizer_folder)
    assert "not of this tokenizer, which has 104 tokens" in " ".join(printed.split())


@repeatable
@given(st.text())
def test_visible_text_is_one_line_that_a_terminal_only_prints(text):
    shown = visible(text)
    assert visible(shown) == shown
    assert all(c.isprintable() or c.isspace() for c in shown) and len(shown.splitlines()) <= 1
    shown.encode()
    if text.isprintable() and text.isascii():
        assert shown == text


def test_text_is_cut_in_the_middle():
    assert cut("abcdefghij", 10) == "abcdefghij"
    assert cut("abcdefghijk", 5) == "abc […6 characters…] jk"
    assert cut("abc", 0) == " […3 characters…] "
    long = cut("x" * 5000, 480)
    assert len(long) < 520 and "4,520 characters" in long


# ---- picture ---------------------------------------------------------------------------------------------------------


def test_the_picture(folder, tmp_path, capsys):
    assert run(capsys, folder, "--plot", tmp_path / "o.png")[0] == 0
    picture = image.imread(tmp_path / "o.png")
    assert picture.shape[0] > 500 and picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 100  # colours


@repeatable
@given(st.lists(st.integers(0, 10**5), min_size=1) | st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_bars_hold_every_value(values):
    edges = bar_edges(np.array(values))
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert 2 <= len(edges) <= BARS + 1
    np.testing.assert_allclose(np.diff(edges), edges[1] - edges[0], rtol=1e-5)


# ---- paths and damage ------------------------------------------------------------------------------------------------


def test_every_way_to_name_it(folder, monkeypatch, capsys):
    buffer = folder / "replay"
    assert find_buffer(folder) == find_buffer(buffer) == find_buffer(folder.parent) == buffer.resolve()
    monkeypatch.chdir(buffer)
    assert find_buffer(Path(".")) == buffer.resolve()


def test_a_folder_in_which_saving_was_interrupted_is_told(tmp_path, capsys):
    (tmp_path / "global_step_3" / "replay").mkdir(parents=True)
    (tmp_path / "global_step_3" / "replay" / "rollouts.safetensors.tmp").write_bytes(b"half")
    status, _, errors = run(capsys, tmp_path)
    assert status == 1 and "replay.resume=fresh" in errors


def test_the_newest_is_by_number_and_has_a_buffer(folder, buffer):
    """6 < 10 < 200; 200 has only an actor."""
    (folder.parent / "global_step_200" / "actor").mkdir(parents=True)
    newest = save(buffer, folder.parent, 10)
    assert find_buffer(folder.parent) == (newest / "replay").resolve()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p / "nowhere", "does not exist"),
        (lambda p: p, "holds no replay buffer. Give a global_step_N folder"),
        (lambda p: (p / "global_step_7").mkdir() or p / "global_step_7", "made with replay=off"),
        (lambda p: (p / "global_step_7").mkdir() or p, "made with replay=off"),
        (lambda p: (p / "f").write_text("") and None or p / "f", "is a file. Give the folder"),
    ],
)
def test_a_path_without_a_buffer(make, said, tmp_path, capsys):
    status, printed, errors = run(capsys, make(tmp_path))
    assert (status, printed) == (1, "")
    assert said in errors and errors.count("\n") == 1


def overwrite(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda arrays, manifest: overwrite(arrays, -9), "is damaged: its checksum does not match"),
        (lambda arrays, manifest: arrays.write_bytes(arrays.read_bytes()[:-5]), "were written"),
        (lambda arrays, manifest: arrays.unlink(), ".safetensors"),
        (lambda arrays, manifest: overwrite(manifest, 200), "is damaged"),
        (lambda arrays, manifest: manifest.write_bytes(b""), "is damaged"),
        (lambda arrays, manifest: manifest.unlink(), "manifest.json"),
    ],
)
def test_damage_is_told_with_the_remedy(damage, said, folder, capsys):
    (arrays,) = (folder / "replay").glob("*.safetensors")
    damage(arrays, folder / "replay" / "manifest.json")
    status, printed, errors = run(capsys, folder.parent)
    assert (status, printed) == (1, "")
    assert said in errors and "replay.resume=fresh" in errors
    assert "Traceback" not in errors and str(folder) in errors


def test_a_folder_that_was_renamed_is_told(folder, capsys):
    folder.rename(folder.parent / "global_step_9")
    status, _, errors = run(capsys, folder.parent)
    assert status == 1 and "is of step 6, its folder of step 9" in errors


def test_a_state_that_does_not_hold_together_is_told(buffer, tmp_path, capsys):
    """Files intact, contents not: the table is one rollout short."""
    state = buffer.state()
    arrays = {n: array[:-1] if n.startswith("table/") else array for n, array in state.arrays.items()}
    checkpoint.save(tmp_path / "replay", state._replace(arrays=arrays), step=1, fingerprint={})
    status, _, errors = run(capsys, tmp_path)
    assert status == 1 and "does not hold together" in errors


@pytest.mark.parametrize("make", [lambda p: p / "nowhere", lambda p: p])
def test_a_folder_without_a_tokenizer_is_told(make, folder, tmp_path, capsys):
    status, printed, errors = run(capsys, folder, "--tokenizer", make(tmp_path))
    assert (status, printed) == (1, "") and "tokenizer" in errors


def test_a_picture_that_cannot_be_written_is_told(folder, tmp_path, capsys):
    status, _, errors = run(capsys, folder, "--plot", tmp_path / "nowhere" / "o.png")
    assert status == 1 and "nowhere" in errors


def test_columns_without_text(tmp_path, capsys):
    """A store of other columns: numbers, no texts."""
    buffer = RolloutBuffer(capacity=5, seed=0)
    buffer.add(make_table([[1, 0]]).stored(1), id_rows([1, 2]))
    assert run(capsys, save(buffer, tmp_path, 1))[0] == 0


def test_the_names_of_the_columns_are_verls():
    assert (PROMPT, RESPONSE) == (columns.PROMPT, columns.RESPONSE)
