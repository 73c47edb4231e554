"""A cell's input pipeline: its changes, its reading, its speed."""
