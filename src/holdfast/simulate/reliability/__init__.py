"""How often a fleet fails, and what that costs: formulas, one idea a file, and a fleet played from dice to check them against."""
