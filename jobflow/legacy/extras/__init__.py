"""Rarely used parts of the API of job functions.

The other modules of `legacy` import nothing from here before a program uses it.
"""
