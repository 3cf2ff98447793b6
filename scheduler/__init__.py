"""Plans, request machines and executors: how a partitioned model runs."""
