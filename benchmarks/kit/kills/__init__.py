"""Parts of crash_resume: the processes that it kills, what they work on, and when they are killed."""
