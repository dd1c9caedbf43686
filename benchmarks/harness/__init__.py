"""What the benchmarks share: measuring and reporting, processes, step logs, jobs."""
