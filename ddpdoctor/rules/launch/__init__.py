"""LAUNCH: who starts the job, and with what."""
