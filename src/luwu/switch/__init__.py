"""The switch process: joins a server and adds gradients up, run after run. Never imports torch."""
