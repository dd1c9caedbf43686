"""The real core in a world that is made up: a virtual clock, virtual nodes, seeded faults. `world.run(seed)` is the whole of it."""
