"""LAUNCH: schedulers, launchers inside launchers, accelerate and deepspeed."""
