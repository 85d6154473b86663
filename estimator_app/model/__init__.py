"""The model: networks, losses, metrics, optimizers."""
