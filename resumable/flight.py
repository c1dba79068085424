"""Read the flight recorder's files: the position of each rank, now or when its process died.

loader = resumable.wrap(dataset, batch_size=64, flight_recorder="runs/flight")

for record in resumable.flight.read("runs/flight"):
    print(record.rank, record.where, record.status)
"""

from resumable._flight.record import FlightRecord, odd_ones, read

__all__ = ["FlightRecord", "odd_ones", "read"]
