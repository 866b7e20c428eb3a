#!/bin/sh
# Print what each of the given Pythons has installed; one that is not there is left out.
set -eu
for python in "$@"; do
    [ -x "$python" ] || continue
    echo "# $python"
    # with the pip of the PATH: not each Python has one
    python3 -m pip --python "$python" freeze --all
done
