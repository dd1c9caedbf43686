"""What holds the workers of a node to their resources: control groups, version 2 or 1, and limits of processes where there are none."""
