"""Frozen descriptions of the values to show, free of TensorFlow's classes.

An adapter fills a description once. Text, picture, table and widget are drawn from the description
and never see the framework.
"""
