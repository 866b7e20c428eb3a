"""The build stage: a pinned checkpoint becomes a verified, versioned engine in the store.

The flow is pin -> convert -> quantise -> compile -> verify -> commit. Each step writes into a staging
folder; the last one renames it into the store, so an engine is either whole or not there.
"""

__version__ = "0.1.0"
