"""Contests and reproductions, on the sweep engine."""
