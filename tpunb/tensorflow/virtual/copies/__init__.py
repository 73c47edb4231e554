"""The copies of a strategy's variables: kept, viewed, updated, ordered."""
