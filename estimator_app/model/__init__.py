"""What is trained: networks, losses, metrics, optimizers."""
