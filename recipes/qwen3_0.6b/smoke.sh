#!/usr/bin/env bash
# Three steps of this recipe on a CPU, replay from the second: the whole of verl on the real Qwen3-0.6B architecture, in about
# 6 minutes and 16 GB. Shows that it runs, not that it learns: without MODEL_PATH the weights are random, and the reward
# is a toy that random weights can earn (data_prep/dense_toy_reward.py). Afterwards scripts/check_smoke.py asserts what must hold.
#   bash recipes/qwen3_0.6b/smoke.sh [overrides]           MODEL_PATH=<folder or hub name>: real weights
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
export PYTHON="${PYTHON:-$root/.venv/bin/python}"
[ -x "$PYTHON" ] || { echo "smoke.sh: $PYTHON is missing. Run: bash scripts/setup.sh" >&2; exit 1; }
export OUTPUT_DIR="${OUTPUT_DIR:-$root/outputs/smoke_0.6b}"
export DATA_DIR="${DATA_DIR:-$root/outputs/smoke_assets}"
export TIMEOUT="${TIMEOUT:-900}"   # a failed weight sync hangs
cd "$root"

tokenizer=()
if [ -n "${MODEL_PATH:-}" ]; then
    "$PYTHON" -m data_prep.make_smoke --output "$DATA_DIR" --model "$MODEL_PATH"
    tokenizer=("actor_rollout_ref.model.tokenizer_path=$DATA_DIR/tokenizer")
else
    "$PYTHON" -m data_prep.make_smoke --output "$DATA_DIR"
    export MODEL_PATH="$DATA_DIR/model"
fi

rm -rf "$OUTPUT_DIR" && mkdir -p "$OUTPUT_DIR"
export WEIGHT_DIGESTS="$OUTPUT_DIR/weights" VERL_USE_EXTERNAL_MODULES=verl_replay.weight_digests
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
eval "$("$PYTHON" -m verl_replay.platforms.cpu_environment)"

# bf16 weights and a rate that moves them (bf16 keeps 8 bits: 1e-6 on 0.02 is lost), computed with in fp32, which a CPU without
# bf16 instructions does six times faster and in which vLLM and the actor agree to the fifth digit.
fp32='{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}'
bash "$here/run.sh" machine=cpu \
    data.train_files="$DATA_DIR/train.parquet" data.val_files="$DATA_DIR/train.parquet" \
    data.train_batch_size=2 data.max_prompt_length=16 data.max_response_length=12 \
    "${tokenizer[@]}" actor_rollout_ref.model.enable_gradient_checkpointing=false \
    actor_rollout_ref.actor.ppo_mini_batch_size=2 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512 \
    actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.fsdp_config.model_dtype=bf16 \
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision=$fp32" \
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.dtype=float32 actor_rollout_ref.rollout.max_model_len=28 \
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=512 \
    actor_rollout_ref.rollout.max_num_seqs=16 actor_rollout_ref.rollout.max_num_batched_tokens=1024 \
    reward.custom_reward_function.path=pkg://data_prep.dense_toy_reward \
    replay.warmup_steps=0 replay.diagnostics_every=3 \
    trainer.total_training_steps=3 trainer.val_before_train=false trainer.test_freq=-1 trainer.save_freq=-1 \
    trainer.resume_mode=disable 'trainer.logger=[console,file]' "$@" 2>&1 | tee "$OUTPUT_DIR/train.log"

exec "$PYTHON" -m scripts.check_smoke "$OUTPUT_DIR"
