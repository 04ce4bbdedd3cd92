import sys
from pathlib import Path

# The hand-made records of the metric tests serve here, too.
sys.path.append(str(Path(__file__).parents[1] / "metrics"))
