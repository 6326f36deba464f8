"""Collection without a model: known populations, the real core, a simulated server. Needs numpy.

- populations: Beta mixtures, exactly; finite pools whose pass rates drift
- lengths: response lengths
- server: continuous batching in simulated time
- training: one policy over a pool, step after step
- baselines: dynamic sampling as verl does it, and its ideal
- arms, tables: what is compared in which table
- robustness: an abrupt policy shift under a predicted stream
- guarantees, gradient: the paper's claims, checked numerically
"""
