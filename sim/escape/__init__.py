"""Escape from the healthy side: how long an undisturbed engine serves before its own arrivals make it collapse."""
