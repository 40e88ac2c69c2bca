"""Pretrained hosts, and their O variants on the same weights."""
