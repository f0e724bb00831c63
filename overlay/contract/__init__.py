"""The contract: what an overlay needs to hold of its inputs, checked from metadata, headers and small files alone.

:mod:`~overlay.contract.check` runs the :mod:`~overlay.contract.checks` on a :mod:`~overlay.contract.subject`: an entry,
its repos, and what both were :mod:`~overlay.contract.before`. It reports each :mod:`~overlay.contract.finding` and the
:mod:`~overlay.contract.cost` of a change, which :mod:`~overlay.contract.render` prints. What a lock says of a model is
taken down by :mod:`~overlay.contract.facts`.
"""
