"""The laboratory: trains, evaluates, adapts and exports networks on a user's data."""
