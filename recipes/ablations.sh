#!/usr/bin/env bash
# The paper's comparisons (ablations.txt) with every seed, as separate runs of one recipe. Lists them with their state; RUN=1 runs what
# is not finished, one after another. Stopped, it goes on where it was: a finished arm is not run again, and a stopped
# one resumes from its own checkpoint.
#   bash recipes/ablations.sh                                                    # what there is to run
#   RUN=1 bash recipes/ablations.sh trainer.total_training_steps=200             # arguments go to every arm
#   RUN=1 ONLY='off|filtered|fresh_anchored' SEEDS="1" RECIPE=recipes/qwen3_4b/run.sh bash recipes/ablations.sh
# From the environment: RECIPE (recipes/qwen3_1.7b/run.sh), SEEDS ("1 2 3"), ONLY (an extended regular expression that the whole name
# of an arm must match), ABLATIONS_DIR (outputs/ablations/<recipe>), DRY_RUN=1 (check each arm, run none).
# Afterwards: python -m scripts.compare_runs, see recipes/README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/.." && pwd)"
recipe="${RECIPE:-$here/qwen3_1.7b/run.sh}"
[ -f "$recipe" ] || { echo "ablations.sh: RECIPE must be a recipe's run.sh, got $recipe" >&2; exit 2; }
folder="${ABLATIONS_DIR:-$root/outputs/ablations/$(basename "$(dirname "$recipe")")}"
trap 'echo "ablations.sh: stopped; run it again to go on" >&2; exit 130' INT TERM

state() {  # of the run in $1 with the settings $2
    if [ ! -f "$1/settings" ]; then echo open
    elif [ "$(cat "$1/settings")" != "$2" ]; then echo other
    elif [ -f "$1/finished" ]; then echo finished
    else echo stopped; fi
}

runs=() total=0 failed=0
while read -r arm overrides; do
    [[ -z "$arm" || "$arm" == \#* ]] && continue
    [[ "$arm" =~ ^(${ONLY:-.*})$ ]] || continue
    for seed in ${SEEDS:-1 2 3}; do
        runs+=("$arm|$seed|$overrides")
    done
done < "$here/ablations.txt"
[ "${#runs[@]}" -gt 0 ] || { echo "ablations.sh: ONLY='${ONLY:-}' SEEDS='${SEEDS:-}' leave no arm of ablations.txt" >&2; exit 2; }

for each in "${runs[@]}"; do
    IFS='|' read -r arm seed overrides <<< "$each"
    total=$((total + 1))
    output="$folder/$arm/seed_$seed"
    # Unquoted: an arm's overrides are words. The draws, the order of prompts and vLLM's sampling have a seed each.
    settings=($overrides "replay.seed=$seed" "data.seed=$seed" "actor_rollout_ref.rollout.seed=$seed" "$@")
    now="$(state "$output" "${settings[*]}")"
    printf '%3d/%d %-9s %-16s seed %s: OUTPUT_DIR=%q bash %q' "$total" "${#runs[@]}" "$now" "$arm" "$seed" "$output" "$recipe"
    printf ' %q' "${settings[@]}"
    echo
    if [ "$now" = other ]; then
        echo "ablations.sh: $output was made with other settings: $(cat "$output/settings"). Remove it, or set ABLATIONS_DIR." >&2
        failed=$((failed + 1))
    elif [ "${DRY_RUN:-0}" != 0 ]; then
        OUTPUT_DIR="$output" bash "$recipe" "${settings[@]}" > /dev/null 2>&1 \
            || { echo "ablations.sh: $arm is refused; run the line above with DRY_RUN=1" >&2; failed=$((failed + 1)); }
    elif [ "${RUN:-0}" = 1 ] && [ "$now" != finished ]; then
        mkdir -p "$output"
        echo "${settings[*]}" > "$output/settings"
        if OUTPUT_DIR="$output" bash "$recipe" "${settings[@]}" >> "$output/train.log" 2>&1; then
            date -u +%FT%TZ > "$output/finished"
        else
            echo "ablations.sh: $arm, seed $seed failed: $output/train.log" >&2
            failed=$((failed + 1))
        fi
    fi
done
[ "$failed" = 0 ] || { echo "ablations.sh: $failed of $total failed" >&2; exit 1; }
