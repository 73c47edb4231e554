"""What is shown: described first, then drawn as text, picture, table or widget."""
