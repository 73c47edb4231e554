"""What a traced step of JAX costs its user, although it compiles and fits: a table of checks."""
