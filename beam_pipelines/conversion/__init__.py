"""The steps of a conversion (plan, write shards, commit) and the files that they write."""
