"""Checks of single images: damage, required fixes, and reasons for rejection."""
