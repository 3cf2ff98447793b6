"""The device's side: what a node offers, and the stages that run there."""
