"""The parts of scripts/compare_runs.py."""
