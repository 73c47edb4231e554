"""Helpers without knowledge of TPUs: deadlines, logs, files, masking of secrets."""
