"""Commands that make parts of docs/: pages of reference from the code, and pictures."""
