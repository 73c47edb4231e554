"""What a training run measures: its history, as columns, a table and a figure."""
