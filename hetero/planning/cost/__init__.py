"""The cost model: what nodes, subgraphs and transfers take, measured on devices or estimated."""
