"""Losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""
