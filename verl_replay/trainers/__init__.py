"""The hooks: where replay meets verl's trainers."""
