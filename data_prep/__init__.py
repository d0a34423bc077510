"""Tasks, parquet files, rewards and tiny base models for training with verl."""
