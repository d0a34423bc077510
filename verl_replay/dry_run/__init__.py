"""DRY_RUN: what a run would need and cost, from its configuration alone. Starts nothing, needs no GPU and no input."""
