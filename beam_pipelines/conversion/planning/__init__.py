"""Planning: list → label → split → size → order → cut, as functions over batches of rows; no image is stored here."""
