"""Who runs where, and why: fair shares, priority, gangs, reservations, elastic jobs. `cycle.decide(cluster, now)` is the whole of it; it is pure."""
