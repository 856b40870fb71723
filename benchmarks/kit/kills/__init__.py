"""Parts of crash_resume and durable_points: the processes that they kill, their work, and the moments of kills."""
