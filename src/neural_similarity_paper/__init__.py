"""The paper: its recipes, tables and theory, and what our records say of them.

It lives in a clone alone. `nsim` finds it by the entry points of pyproject.toml.
"""
