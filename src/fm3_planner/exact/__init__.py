"""Planners that prove what they answer."""
