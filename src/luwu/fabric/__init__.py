"""Sessions and endpoints over the native data plane, on one host and over the network."""
