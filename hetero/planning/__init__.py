"""Planning by cost: profiling, the search for a plan, and the report of the chosen plan."""
