"""What agent, control and viewers say to each other: frames, sequence numbers, acknowledgement, schemas."""
