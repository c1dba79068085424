"""The comparisons. A suite is a function of the plan that returns tables."""

from benchmarks.suites import (
    dali,
    dali_elastic,
    ffcv,
    formats,
    guards,
    lightning,
    memory,
    memory_workers,
    order,
    peers,
    restart,
    resume,
    scale,
    startup,
    state,
    tfdata,
    tfds,
    throughput,
    transport,
)

__all__ = ["SUITES"]

SUITES = {
    "throughput": throughput.run,
    "transport": transport.run,
    "startup": startup.run,
    "state": state.run,
    "guards": guards.run,
    "resume": resume.run,
    "restart": restart.run,
    "memory": memory.run,
    "memory_workers": memory_workers.run,
    "scale": scale.run,
    "order": order.run,
    "dali": dali.run,
    "dali-elastic": dali_elastic.run,
    "ffcv": ffcv.run,
    "tfdata": tfdata.run,
    "lightning": lightning.run,
    "peers": peers.run,
    "peers-resume": peers.run_resume,
    "formats": formats.run,
    "tfds": tfds.run,
}
