"""Wharfinger: one control plane for models served on machines you own and machines you rent."""

__version__ = "0.1.0"
