"""Exports as clients use them: which one is meant, loading, what lies beside the graph."""
