"""Reading libtpu's answer: memory, time, collectives."""
