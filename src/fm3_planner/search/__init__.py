"""The search of ipo and hcc_ipo: one algorithm in C++ (`fm3_planner._C`) and in Python, with equal moves.

`engine.search` runs either; the other modules are the Python one. Each has its counterpart in csrc/planner,
makes the same decisions in the same order and counts the same moves.
"""
