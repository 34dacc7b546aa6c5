"""Settings of the property-based tests: a busy machine is no reason to fail."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("config", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("config")
