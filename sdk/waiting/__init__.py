"""Why a job waits, when it will start, and what would start it sooner."""
