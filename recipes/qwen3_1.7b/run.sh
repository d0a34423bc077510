#!/usr/bin/env bash
# Qwen3-1.7B-Base on DAPO-Math-17k with replay. Any setting of ../qwen3/qwen3.yaml can be changed on the command line:
#   bash recipes/qwen3_1.7b/run.sh                                # the paper's method
#   bash recipes/qwen3_1.7b/run.sh replay=off                     # stock GRPO, the baseline
#   DRY_RUN=1 bash recipes/qwen3_1.7b/run.sh replay=pooled        # checks everything, estimates memory and time, starts nothing
# The environment variables it reads are listed in ../qwen3/launch.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../qwen3/launch.sh" 1.7b "$@"
