"""Cost model: times of nodes, subgraphs and transfers, measured on devices or estimated."""
