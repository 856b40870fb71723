"""Base of every other room: errors, manifests, protocols, settings, and the native core's door."""
