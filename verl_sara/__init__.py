"""SARA (Sequential Adaptive Rollout Allocation, arXiv 2607.26253) as a plug-in for verl.

Importing this package pulls in the standard library only; see `verl_sara.core` for the decisions
and `verl_sara.adapters` for everything that touches verl, Ray or torch.
"""

__version__ = "0.1.0"
