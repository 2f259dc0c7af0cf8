from hypothesis import HealthCheck, settings

settings.register_profile(
    "cube",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("cube")
