"""What is compared with what. A suite is a function of the plan that returns tables."""

from benchmarks.suites import lightning, memory, peers, resume, startup, state, throughput

__all__ = ["SUITES"]

SUITES = {
    "throughput": throughput.run,
    "startup": startup.run,
    "state": state.run,
    "resume": resume.run,
    "memory": memory.run,
    "lightning": lightning.run,
    "peers": peers.run,
}
