"""Frozen descriptions of the values to show, free of TensorFlow's classes.

An adapter fills a description once; text, picture, table and widget are drawn
from it and never see the framework.
"""
