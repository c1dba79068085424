"""Chaos: run a training script, break it on purpose, start it again, and prove that nothing was lost.

report = resumable.chaos.run(["python", "train.py"])
assert report.ok, report
"""
