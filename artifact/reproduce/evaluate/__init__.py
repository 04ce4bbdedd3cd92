"""Evaluators of the claims, one module a group of `claims.yaml`. They import metrics only, so that listing claims stays
fast; every module of this package is found by `artifact.reproduce.registry`."""
