"""The measurements of a training run: its history, as columns, a table and a figure."""
