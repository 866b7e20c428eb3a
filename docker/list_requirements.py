"""Print what trtb requires, from its pyproject.toml, so that it is installed in a layer of its own.

That layer is kept while only trtb's own code changes.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

for line in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]["dependencies"]:
    sys.stdout.write(f"{line}\n")
