"""What teaches: the checks of a course, and the puzzles."""
