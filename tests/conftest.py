import signal

from hypothesis import HealthCheck, settings

# How long an example takes says nothing: the first one may compile, and a machine may be busy with something else.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what it puts into the background with SIGINT ignored, nohup ignores SIGHUP, and programs that tests start
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
