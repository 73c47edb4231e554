"""What knows nothing of TPUs: deadlines, logs, secrets."""
