"""From a cause to what to do about it: the ladder, budgets, reasons. Pure."""
