"""Where an engine's server runs, whether the engine fits there, and how it is started."""
