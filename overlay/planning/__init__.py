"""Recipes: from an inventory to a plan. See :mod:`overlay.planning.outputs` for what a plan is made of."""
