"""From exits and findings to a cause: pure."""
