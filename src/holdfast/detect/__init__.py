"""Rules over what was seen: pure, one detector a file. Each says when it is wrong."""
