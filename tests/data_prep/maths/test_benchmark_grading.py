"""The benchmark runs from end to end on few answers. What it measures is not asserted: times are the machine's."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.benchmark_grading import KINDS, SHARES, cases_of, main, mixed, plain


def test_the_table_has_every_kind_and_all_are_graded_as_expected(capsys):
    assert main(["--answers", "100", "--thin", "50"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == [*KINDS, "the mix"]
    for line in lines[2:]:
        right, of = line.split(" | ")[2].replace(",", "").split(" of ")
        assert right == of


def test_the_mix_is_as_described_and_no_answer_comes_twice():
    cases = mixed(1000, np.random.default_rng(0))
    assert len(cases) == 1000 and sum(SHARES) == pytest.approx(1)
    assert len({case.response for case in cases}) == 1000
    assert sum(case.right for case in cases) == pytest.approx(610, abs=25)  # 45 % + 10 % + half of 10 % + 1 %


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no box"])
def test_math_verify_alone_agrees(kind):
    for case in cases_of(kind, 3, np.random.default_rng(0)):
        assert plain(case) == case.right


def test_bad_numbers_are_refused(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--answers", "1"])
    assert exit.value.code == 2 and "at least 100" in capsys.readouterr().err
