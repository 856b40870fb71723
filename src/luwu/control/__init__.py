"""The control plane: addresses, credentials, messages, timeouts, and the links that they lead to."""
