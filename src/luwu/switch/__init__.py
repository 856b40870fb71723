"""The switch process: joins a server, adds up what hangs below it, run after run. Never imports torch."""
