"""Sessions and endpoints over the native data plane."""
