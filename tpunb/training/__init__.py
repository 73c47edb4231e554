"""The measurements of a training run: its history, profile and input speed."""
