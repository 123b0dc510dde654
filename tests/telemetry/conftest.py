"""Property tests read and write files, on machines that others use too: their time says nothing."""

from hypothesis import HealthCheck, settings

settings.register_profile("files", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("files")
