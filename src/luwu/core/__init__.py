"""What every other room stands on: errors, manifests, protocols, settings, and the native core's door."""
