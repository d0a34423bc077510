"""What the smoke run asserts: all holds for a good run, and each check fails for the run it is there to find."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from scripts.check_smoke import checks, main

COLUMNS = {
    "actor/pg_loss": [-0.1, 0.2, 0.1],
    "actor/grad_norm": [8.0, 7.0, 6.0],
    "replay/draw/rollouts": [0.0, 8.0, 8.0],
    "rollout_corr/k3_kl": [4e-7, 5e-7, 3e-7],
    "timing_s/step": [60.0, 61.0, 62.0],
}


def good():
    metrics = pd.DataFrame(COLUMNS, index=pd.Index([1, 2, 3], name="step"))
    actor = {sync: {"a": f"a{sync}", "b": "b0"} for sync in range(4)}
    return metrics, actor, [{sync: dict(found) for sync, found in actor.items()}]


def failed(metrics, actor, engines) -> list[str]:
    return [text for holds, text in checks(metrics, actor, engines) if not holds]


def test_a_good_run_passes():
    assert failed(*good()) == []


@pytest.mark.parametrize(
    ("column", "step", "value", "found"),
    [
        ("actor/pg_loss", 2, math.nan, "actor/pg_loss finite"),
        ("actor/grad_norm", 3, math.inf, "actor/grad_norm finite"),
        ("actor/grad_norm", 3, 0.0, "gradients not zero"),
        ("replay/draw/rollouts", 2, 0.0, "rollouts replayed"),
        ("replay/draw/rollouts", 1, 3.0, "rollouts replayed"),
        ("rollout_corr/k3_kl", 3, 1e-3, "log-probs of vLLM and actor"),
    ],
)
def test_what_metrics_give_away(column, step, value, found):
    metrics, actor, engines = good()
    metrics.loc[step, column] = value
    (text,) = failed(metrics, actor, engines)
    assert found in text


def test_a_step_too_few():
    metrics, actor, engines = good()
    assert any("steps run: [1, 2]" in text for text in failed(metrics.drop(3), actor, engines))


def test_what_weights_give_away():
    metrics, actor, engines = good()
    engines[0][2]["a"] = "a1"  # an engine that kept the weights of the step before
    assert any("equal the actor's: [0, 1, 3]" in text for text in failed(metrics, actor, engines))
    metrics, actor, engines = good()
    actor[2] = engines[0][2] = dict(actor[1])
    assert failed(metrics, actor, engines) == ["tensors that step 2 changed: 0 of 2"]
    metrics, actor, _ = good()
    assert any("replicas that reported" in text for text in failed(metrics, actor, []))
    del actor[3]
    assert any("weight syncs of the actor: [0, 1, 2]" in text for text in failed(metrics, actor, good()[2]))


def test_the_command_reads_what_the_run_wrote(tmp_path, capsys):
    metrics, actor, engines = good()
    assert main([str(tmp_path)]) == 1 and "what stopped it" in capsys.readouterr().err
    lines = [json.dumps({"step": int(step), "data": row}) for step, row in metrics.to_dict("index").items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "weights").mkdir()
    for name, found in (("actor", actor), ("vllm_7", engines[0])):
        text = "".join(json.dumps({"sync": sync, "digests": d}) + "\n" for sync, d in found.items())
        (tmp_path / f"weights/{name}.jsonl").write_text(text)
    assert main([str(tmp_path)]) == 0 and "FAILED" not in capsys.readouterr().out
    (tmp_path / "weights/vllm_7.jsonl").write_text("")
    assert main([str(tmp_path)]) == 1 and "FAILED syncs after which" in capsys.readouterr().out
    assert main([]) == 2
