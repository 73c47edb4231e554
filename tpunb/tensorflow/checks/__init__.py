"""What is wrong with a program: strict rules, comparisons with one replica, warnings of `fit`."""
