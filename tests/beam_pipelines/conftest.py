"""Beam's pipelines are built in less time."""

from __future__ import annotations

from support.signatures import remember_signatures

remember_signatures()
