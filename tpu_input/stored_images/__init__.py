"""What is stored of an image file: the same for a conversion and for a prediction."""
