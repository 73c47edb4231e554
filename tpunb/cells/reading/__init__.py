"""A cell's source: its names, what it reads and defines, its mistakes."""
