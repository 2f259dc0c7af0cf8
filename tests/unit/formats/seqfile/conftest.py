from hypothesis import settings

# The first example of a test may compile; how long that takes says nothing.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
