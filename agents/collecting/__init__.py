"""The parts of the collector: environment leases, one episode, one group, one step of rounds, deadlines."""
