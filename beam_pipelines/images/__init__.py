"""One image: whether it is whole, what is fixed, why it is rejected."""
