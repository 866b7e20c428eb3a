"""What fits where: checks of a machine against a build or an engine, and plans made from sizes alone."""
