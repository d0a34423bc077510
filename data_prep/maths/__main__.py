r"""Real maths problems as parquet files for verl: cleaned, without the benchmarks' problems, each answer gradable.

    python -m data_prep.maths --dataset all --output data                          # from the Hugging Face hub
    python -m data_prep.maths --dataset bench --source FOLDER --output data        # from jsonl, json, parquet or csv
    python -m data_prep.maths --dataset dapo_math_17k --source FILE --output data  # compared with data/*.parquet

Writes DIR/NAME.parquet and DIR/NAME.json, the report. Rows of training sets are dropped where they repeat another row,
contradict one, cannot be graded, or are a problem of a benchmark (--against; those in DIR by default).

A row's prompt is one user message, the problem and an instruction. verl puts it through the tokenizer's chat template
in any case. Base models: the Qwen3 and Qwen2.5 base models come with one, and are trained with it as it is; for a
tokenizer without one, or to show a base model the plain text, set
actor_rollout_ref.model.custom_chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}"
The files stay the same. A base model should stop at its end token: look at response lengths, and at answers behind
which the text goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_prep.maths.cleaning import clean_rows
from data_prep.maths.contamination import BenchIndex
from data_prep.maths.helper import Helpers
from data_prep.maths.output import (
    SUFFIX,
    bench_files,
    is_bench,
    make_report,
    read_bench,
    verl_rows,
    write_parquet,
    write_report,
)
from data_prep.maths.reading import Row, read_rows
from data_prep.maths.sources import DATASETS, GROUPS, dataset_names

SHOWN = 12  # contaminated rows on the screen; the report has them all


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.maths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", required=True, nargs="+", metavar="NAME", help=f"of {', '.join([*GROUPS, *DATASETS])}"
    )
    parser.add_argument("--source", type=Path, metavar="PATH", help="a file, or a folder of files; default: the hub")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--against", type=Path, nargs="+", metavar="PATH", help="parquet files or folders of benchmarks; default: DIR's"
    )
    suffix = parser.add_mutually_exclusive_group()
    suffix.add_argument("--suffix", default=SUFFIX, metavar="TEXT", help="the instruction; default: %(default)r")
    suffix.add_argument("--no-suffix", dest="suffix", action="store_const", const="", help="the problem alone")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    options = parse(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    helpers = Helpers(most=1)
    try:
        run(options, helpers)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"data_prep.maths: {str(error).removeprefix('data_prep.maths: ')}", file=sys.stderr)
        return 2
    finally:
        helpers.close()
    return 0


def run(options: argparse.Namespace, helpers: Helpers) -> None:
    """Check everything, then make each data set."""
    names = dataset_names(options.dataset)
    if options.source is not None:
        if not options.source.exists():
            raise ValueError(f"--source {options.source} does not exist")
        if options.source.is_file() and len(names) > 1:
            raise ValueError(f"--source {options.source} is one file for {names}; give a folder, or one --dataset")
    given = bench_files(options.against) if options.against else []
    for name in names:
        make_one(name, options, given, helpers)


def make_one(name: str, options: argparse.Namespace, given: list[Path], helpers: Helpers) -> None:
    """Read, clean, write and report one data set."""
    dataset, index, against = DATASETS[name], None, []
    if dataset.role == "train":
        against = given or [path for path in sorted(options.output.glob("*.parquet")) if is_bench(path.stem)]
        index = BenchIndex(problem for path in against for problem in read_bench(path))
    cleaned = clean_rows(dataset, read_rows(dataset, options.source), helpers, index, progress_of(name))
    if not cleaned.rows:
        raise ValueError(f"{name}: none of {cleaned.read} rows is left ({dict(cleaned.dropped)}); look at the source")
    sha256 = write_parquet(options.output / f"{name}.parquet", verl_rows(dataset, cleaned, options.suffix))
    report = make_report(
        dataset, cleaned, suffix=options.suffix, sha256=sha256, against=[path.stem for path in against]
    )
    write_report(options.output / f"{name}.json", report)
    show(report)


def progress_of(name: str) -> Any:
    """Bars for what takes more than a second; in a log file a line every ten seconds."""
    seconds = 0.1 if sys.stderr.isatty() else 10

    def bar(rows: Iterable[Row], what: str) -> Iterable[Row]:
        return tqdm(rows, desc=f"{name}: {what}", unit="row", leave=False, mininterval=seconds, delay=1)

    return bar


def show(report: dict[str, Any]) -> None:
    """The report on the screen."""
    rows = [("rows read", report["rows_read"]), ("distinct prompts, as written", report["distinct_prompts"])]
    rows += [(f"dropped: {reason}", count) for reason, count in report["dropped"].items()]
    rows += [("rows written", report["rows_written"])]
    print(report["dataset"])
    for what, count in rows:
        print(f"  {what:<32}{count:>8,}")
    if report["prompts_with_conflicting_answers"]:
        print(f"  {'prompts with conflicting answers':<32}{report['prompts_with_conflicting_answers']:>8,}")
    if report["share_with_chinese"]:
        print(f"  {'share with Chinese':<32}{report['share_with_chinese']:>8.1%}")
    if report["role"] == "train":
        show_contamination(report)
    print(f"  sha256 {report['sha256']}", flush=True)


def show_contamination(report: dict[str, Any]) -> None:
    """The benchmark problems found, the surest first."""
    if not report["compared_with"]:
        print("  compared with no benchmark: make them first (--dataset bench), or give --against")
        return
    found = sorted(report["contaminated"], key=lambda match: (match["kind"], -match["similarity"], match["index"]))
    print(f"  compared with {', '.join(report['compared_with'])}: {len(found)} matches")
    for match in found[:SHOWN]:
        print(
            f"    row {match['index']}: {match['kind']} {match['similarity']:.2f}  {match['benchmark']} {match['id']}"
        )
    if len(found) > SHOWN:
        print(f"    and {len(found) - SHOWN} more in the report")


if __name__ == "__main__":
    sys.exit(main())
