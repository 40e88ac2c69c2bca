"""Pretrained models in which a null token does not exist."""
