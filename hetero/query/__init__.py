"""From a model to what each device says of its nodes."""
