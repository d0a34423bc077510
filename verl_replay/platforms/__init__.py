"""Platforms that verl does not ship. Here: `cpu`, all of verl on a machine without an accelerator."""
